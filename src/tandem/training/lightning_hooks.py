"""Hooks of Lightning: iterations, the optimiser, sharding and checkpoint state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from tandem import distributed
from tandem.algorithm.algorithm import Algorithm
from tandem.contracts import name_of
from tandem.contracts.parts import place_of
from tandem.data.stream import OtherPrompts
from tandem.experience import Experience
from tandem.policies.weights import select_prefix
from tandem.rewards import Rewards
from tandem.settings.failures import save_failure
from tandem.settings.guards import Guards
from tandem.stop import Stop
from tandem.training import lr_schedules
from tandem.training.batches import BatchPlan
from tandem.training.collect import RolloutSource
from tandem.training.inputs import Checksums, refuse_unlike_ranks
from tandem.types import Prompt

COUNTERS = (
    "iteration",
    "samples_seen",
    "steps_seen",
    "flat_iterations",
    "full_iterations",
    "skipped",
    "skipped_in_a_row",
)


class Iterations:
    """The prompts of each iteration, drawn when it begins. It has a length, so that Lightning does
    not prefetch before the curriculum is updated."""

    def __init__(
        self,
        stream: torch.nn.Module,
        iterations: range,
        count: int,
        resumed: Callable[[], torch.nn.Module] | None = None,
    ) -> None:
        """resumed: the stream as a resumed run would have it; None: it draws ahead."""
        self.stream, self.iterations, self.count = stream, iterations, count
        self.resumed = resumed

    def __len__(self) -> int:
        return len(self.iterations)

    def __iter__(self) -> Iterator[list[Prompt]]:
        return map(self._draw, self.iterations)

    def _draw(self, iteration: int) -> list[Prompt]:
        """The prompts. Raises Stop if a stream, such as a plugin's, gives the wrong number."""
        drawn = self.stream.draw(iteration, self.count)
        if not isinstance(drawn, list) or len(drawn) != self.count:
            many = f" of {len(drawn)}" if isinstance(drawn, list) else ""
            raise Stop(
                f"iteration {iteration}: {type(self.stream).__name__}.draw returned a "
                f"{type(drawn).__name__}{many}, not a list of {self.count} prompts"
            )
        # A stream may draw by what it observed several iterations before, so the second iteration
        # alone shows too little; powers of two cost little in a long run.
        past = iteration - self.iterations.start
        if self.resumed is not None and past > 0 and past & (past - 1) == 0:
            again = self.resumed().draw(iteration, self.count)
            if [one.id for one in again] != [one.id for one in drawn]:
                raise Stop(
                    f"{type(self.stream).__name__} draws other prompts in a resumed run; keep its "
                    "state in buffers (register_buffer), and draw by tandem.rng from its seed"
                )
        return drawn


class LightningHooks(LightningModule):
    """Everything but the training step, which the subclass defines."""

    policy: torch.nn.Module
    algorithm: Algorithm
    rewards: Rewards
    stream: torch.nn.Module
    source: RolloutSource
    optimizer: Callable[..., torch.optim.Optimizer]
    schedule: Callable[[int, int], float]
    plan: BatchPlan
    guards: Guards
    iteration: int
    flat_iterations: int  # without a signal, in a row
    full_iterations: int  # those of them in which every sample had full reward, in a row
    sharded = False  # whether each rank holds a part of each weight
    # States of parts of the algorithm, and counters, from before the iteration; empty between two
    # iterations. None: an update was made, and the weights from before it are gone.
    boundary: tuple[Mapping[str, Mapping], Mapping[str, int]] | None

    def __init__(
        self, make_stream: Callable[[], torch.nn.Module] | None, inputs: Checksums | None
    ) -> None:
        """make_stream: a new stream in its state before training; inputs: of what the run starts
        from."""
        super().__init__()
        self.automatic_optimization = False  # several updates per rollout
        self.make_stream, self.inputs = make_stream, inputs or {}

    def no_sync(self):
        """A context in which gradients stay on their rank, for all but the last micro-batch."""
        wrapped = self.trainer.strategy.model
        return nullcontext() if wrapped is self else wrapped.no_sync()

    def train_dataloader(self) -> Iterations:
        """The remaining iterations; Lightning calls this after a resumed run is restored."""
        plan, ahead = self.plan, self.source.stream is not self.stream
        return Iterations(
            self.source.stream,
            range(self.iteration, plan.iterations),
            plan.prompts_per_step,
            None if ahead or self.make_stream is None else self.resumed_stream,
        )

    def resumed_stream(self) -> torch.nn.Module:
        """A new stream with the state that a checkpoint holds."""
        made = self.make_stream()
        made.load_state_dict(self.stream.state_dict())
        return made

    def on_fit_start(self) -> None:
        refuse_unlike_ranks(self.inputs)

    def configure_model(self) -> None:
        """Shard the policy; Lightning calls this on all ranks before it creates the optimiser."""
        if self.device_mesh is not None and not self.sharded:
            self.policy.shard(self.device_mesh["data_parallel"])
            self.sharded = True
            # Only now do ranks without weights know whether the network can read packed rows.
            budget = replace(self.plan.budget, packed=self.policy.packs)
            self.plan = replace(self.plan, budget=budget)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        groups = {name: {"params": group} for name, group in self.policy.groups().items()}
        for name, rate in self.algorithm.rates.items():
            if name not in groups:
                part = f"segments.{name}" if name in self.algorithm.segments else name
                raise ValueError(
                    f"algorithm.{part}.lr={rate:g}: {name} has no trained weight of its own (a "
                    f"tied or frozen head); set algorithm.{part}.lr=null"
                )
            groups[name]["lr"] = rate
        return self.optimizer(list(groups.values()))

    def on_train_batch_start(self, batch: Sequence[Prompt], batch_idx: int) -> None:
        """Set the learning rates. Raises Stop for a factor that is none."""
        factor = self.schedule(self.iteration, self.plan.iterations)
        if (fault := lr_schedules.find_fault(factor)) is not None:
            where = f"iteration {self.iteration}: schedule={name_of(self.schedule)}"
            raise Stop(f"{where} returned {fault}")
        for group in self.optimizers().param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor

    def on_train_batch_end(self, *_: object) -> None:
        """End a run without a signal, after the callbacks have recorded its last iteration; one
        that is solved ends like any other."""
        if self.is_solved:
            self.trainer.should_stop = True
        else:
            by_scores = self.algorithm.learns_from_scores
            self.guards.check_signal(self.flat_iterations, self.policy, by_scores=by_scores)

    @property
    def is_solved(self) -> bool:
        """Whether as many iterations had no signal as the guard allows because of full rewards."""
        return self.full_iterations >= self.guards.no_signal

    def skip(self, minibatch: Experience, norm: Tensor) -> None:
        self.skipped, self.skipped_in_a_row = self.skipped + 1, self.skipped_in_a_row + 1
        facts = {
            "iteration": self.iteration,
            "update": self.updates_done,
            "seed": self.plan.seed,
            "rank": distributed.rank(),
            "grad_norm": str(norm.item()),
            "losses": {name: str(float(loss)) for name, loss in self.losses.items()},
        }
        folder = save_failure(self.folder / "failures", minibatch, facts)
        self.guards.check_skipped(self.skipped_in_a_row, facts, folder)

    def transfer_batch_to_device(self, batch: Sequence[Prompt], *_: object) -> Sequence[Prompt]:
        return batch  # prompts are text

    # Checkpoint state other than weights and optimiser.

    def return_to_boundary(self) -> bool:
        """Restore the state between two iterations; False: an update was made, and it is gone."""
        if self.boundary is None:
            return False
        memory, counters = self.boundary
        for name, state in memory.items():
            self.algorithm.memory[name].load_state_dict(state)
        for name, value in counters.items():
            setattr(self, name, value)
        return True

    def state(self) -> dict[str, Tensor]:
        """Counters, and the state of the stream and the policy."""
        counters = {name: torch.tensor(getattr(self, name)) for name in COUNTERS}
        owners = {
            "stream": self.stream.state_dict(),
            "policy": self.policy.state(),
            "ahead": self.source.state(self.iteration),
        }
        memory = self.algorithm.memory
        owners |= {f"algorithm.{name}": x.state_dict() for name, x in memory.items()}
        remembered = {f"{o}.{name}": x for o, state in owners.items() for name, x in state.items()}
        return counters | remembered

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the result of `state`, scalars and tensors. Raises Stop for what does not fit."""
        for name in COUNTERS:
            setattr(self, name, int(state.get(name, 0)))  # older checkpoints have fewer
        what = f"the state of {type(self.stream).__name__} does not fit these prompts"
        _load(self.stream, select_prefix(state, "stream."), OtherPrompts, what)
        self.policy.load_state(select_prefix(state, "policy."))
        self.boundary = ({}, {})
        self.source.begin(self.iteration)
        self.source.load_state(select_prefix(state, "ahead."))
        for name, part in self.algorithm.memory.items():
            what = (
                f"the state of algorithm.{name} ({type(part).__name__} at {place_of(type(part))}) "
                "does not fit that of the checkpoint; if its code has changed since, restore it, "
                f"or start a new run with continue_from={self.folder}"
            )
            _load(part, select_prefix(state, f"algorithm.{name}."), Stop, what)


def _load(part: torch.nn.Module, state: Mapping[str, Tensor], error: type[Stop], what: str) -> None:
    """Load a state. Raises an error of this type that says what does not fit, and why."""
    try:
        part.load_state_dict(state)
    except Stop:
        raise
    except RuntimeError as reason:  # torch names all tensors, one a line
        fault = str(reason).splitlines()[-1].strip("\t.")
        raise error(f"{what}: {fault}") from reason
