"""Checkpoints: saving them during a run, and resuming from one."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from lightning.pytorch import Callback, Trainer
from torch import OutOfMemoryError, Tensor
from torch.optim import Optimizer

from tandem import distributed
from tandem.policies.weights import select_prefix
from tandem.record.checkpoint import find_newest_whole, read, to_json
from tandem.record.optimizer_state import load_optimizer_state, optimizer_state
from tandem.record.publishing import Writing
from tandem.record.run_record import CHECKPOINTS as FOLDER
from tandem.record.run_record import RunRecord
from tandem.record.tensor_files import part_name
from tandem.stop import Abandoned, EngineUnavailable, Stop
from tandem.training.inputs import list_changed
from tandem.training.module import PostTraining
from tandem.training.offload import HOST, move_state

log = logging.getLogger(__name__)
OF_ANOTHER_RUN = (
    "%s was written by another run (id %s in its manifest.json, and %s here): its weights go on "
    "with the configuration and the seed of this run, and the lines before it are of this run"
)
NONE_WHOLE = (
    "no checkpoint in {} is whole ({}); restore one, or remove them all, metrics.jsonl and the "
    "other logs to start again"
)
LAST_SECONDS = 60.0  # that a failed rank waits for a checkpoint being written
CALLBACK_RAISED = (
    "a callback raised at the end of iteration %d; its checkpoint is saved, without what the "
    "callback had still to do; remove a checkpoint to repeat its iteration"
)


class Checkpoints(Callback):
    """Saves a checkpoint after every `every`-th iteration and after the last one."""

    def __init__(self, *, record: RunRecord, every: int, keep: int) -> None:
        if every < 1 or keep < 1:
            raise ValueError(
                f"checkpoints.every={every} and checkpoints.keep={keep} must be at least 1"
            )
        self.record, self.every, self.keep = record, every, keep
        self.spared: Sequence[int] = ()  # steps; the newest checkpoint up to each is kept
        self.published: int | None = None  # step of the last checkpoint, written or restored
        self.writing: Writing | None = None
        self.in_user_callbacks = False  # between record and checkpoint

    def on_train_batch_end(self, trainer: Trainer, module: PostTraining, *_: object) -> None:
        self.in_user_callbacks = False
        self.settle()
        if module.iteration % self.every == 0 or module.iteration == module.plan.iterations:
            self.publish(trainer, module)

    def on_train_end(self, trainer: Trainer, module: PostTraining) -> None:
        self.publish(trainer, module)  # a run may end early
        self.settle()

    def on_exception(self, trainer: Trainer, module: PostTraining, exception: Exception) -> None:
        """Save the state before the iteration, if no update was made, where a guard ended the run,
        a service did not answer, memory was short, the run was stopped while it waited for rewards,
        or a callback of the user raised after a whole iteration: the run can resume from here."""
        # Several ranks may have stopped at different points, and must not wait for each other.
        stop = exception if isinstance(exception, Stop) else None
        meet = distributed.world_size() == 1 or (stop is not None and stop.together)
        if self.writing is not None:
            self.writing.join(None if meet else LAST_SECONDS)
        # A guard in the first iteration has nothing to keep; an engine may have sampled ahead.
        ended = stop is not None and stop.may_save and module.iteration > 0
        lacks = isinstance(exception, EngineUnavailable | Abandoned | OutOfMemoryError)
        expected = lacks or ended or self.in_user_callbacks
        if meet and expected and module.return_to_boundary():
            self.publish(trainer, module)
            self.settle()
            if self.in_user_callbacks:
                log.warning(CALLBACK_RAISED, module.iteration)
            if stop is None:  # the command line names the command for these
                log.warning(self.record.how_to_go_on)

    def publish(self, trainer: Trainer, module: PostTraining) -> None:
        """Save a checkpoint, a collective call; files are written during the next iterations.

        Each rank writes its shards and its share of the replicated tensors; any number of ranks can
        resume. An existing checkpoint of the same step is kept.
        """
        start = time.perf_counter()
        self.settle()
        if self.published == module.iteration:
            return
        numbers, state = optimizer_state(trainer.optimizers[0], module.policy.trainable())
        groups = {"policy": module.policy.weights(), "optimizer": numbers, "module": module.state()}
        if trainer.is_global_zero:
            self.record.sync()  # a checkpoint relies on the lines before it
        self.writing = Writing(
            self.record.folder / FOLDER,
            module.iteration,
            {name: share_of_this_rank(group) for name, group in groups.items()},
            {
                "iteration": module.iteration,
                "run": self.record.id,
                "optimizer": state,
                "inputs": dict(module.inputs),
                **callback_states(trainer),
            },
            keep=self.keep,
            spared=self.spared,
            how_to_go_on=self.record.how_to_go_on,
        )
        self.published = module.iteration
        if trainer.is_global_zero:
            self.record.hold({}, {"time/checkpoint": time.perf_counter() - start})

    def settle(self) -> None:
        """Wait on all ranks until the last checkpoint is written. Raises CheckpointError."""
        writing, self.writing = self.writing, None
        if writing is not None:
            writing.wait()


class UserCallbacksBegin(Callback):
    """The end of an iteration's record, after which the callbacks of the configuration run."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints

    def on_train_batch_end(self, trainer: Trainer, module: PostTraining, *_: object) -> None:
        self.checkpoints.in_user_callbacks = True


def share_of_this_rank(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """CPU copies of the shards on this rank, and of as many replicated tensors as make up this
    rank's share of their bytes.

    Of any shape [...].
    """
    rank, ranks = distributed.rank(), distributed.world_size()
    total = sum(x.nbytes for x in tensors.values() if not distributed.is_sharded(x))
    found: dict[str, Tensor] = {}
    before = 0
    for name, tensor in tensors.items():
        if distributed.is_sharded(tensor):
            rows, first = distributed.part_of_this_rank(tensor)
            if len(rows) or not first:
                found[part_name(name, first)] = copy_to_host(rows)
            continue
        if min(before * ranks // max(total, 1), ranks - 1) == rank:
            found[name] = copy_to_host(tensor)
        before += tensor.nbytes
    return found


def copy_to_host(tensor: Tensor) -> Tensor:
    """A copy that training does not modify. Of any shape [...]."""
    return tensor.detach().to("cpu", copy=True).contiguous()


class Resume(Callback):
    """Restores a run from its newest complete checkpoint before anything else happens."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints

    def on_fit_start(self, trainer: Trainer, module: PostTraining) -> None:
        optimizer, kept = trainer.optimizers[0], self.checkpoints
        kept.published = restore(module, optimizer, kept.record, trainer.callbacks) or None
        trainer.strategy.barrier("resume")


class OptimizerOffload(Callback):
    """Moves the restored optimiser state to host memory after `Resume`; each step leaves it there,
    and nothing reads it before the first step."""

    def on_fit_start(self, trainer: Trainer, module: PostTraining) -> None:
        move_state(trainer.optimizers[0], HOST)


def callback_states(trainer: Trainer) -> dict[str, dict]:
    """The states of a user's callbacks, as Lightning's own checkpoints hold them; {}: none has one.

    Raises Stop for a state that is no JSON.
    """
    states = {one.state_key: one.state_dict() for one in trainer.callbacks}
    states = {name: state for name, state in states.items() if state}
    try:
        return {"callbacks": json.loads(to_json(states))} if states else {}
    except TypeError as error:
        raise Stop(
            f"callbacks: {', '.join(states)}: the state_dict() of a callback holds numbers, texts "
            f"and lists ({error})"
        ) from error


def restore(
    module: PostTraining,
    optimizer: Optimizer,
    record: RunRecord,
    callbacks: Sequence[Callback] = (),
) -> int:
    """Restore weights, optimiser, state and record to the start of an iteration, and return it.

    Tensors are copied in place, which keeps their alignment and hence bit-identical results.
    Without a checkpoint the run starts from the beginning. Raises Stop if all are damaged.
    """
    found = find_newest_whole(record.folder / FOLDER)
    if found.path is None and found.skipped:
        raise Stop(NONE_WHOLE.format(record.folder / FOLDER, "; ".join(found.skipped)))
    for reason in found.skipped:
        log.warning(reason)
    if found.path is not None:
        tensors, state = read(found.path)
        module.policy.load_weights(tensors["policy"])
        names = module.policy.trainable()
        load_optimizer_state(optimizer, names, tensors["optimizer"], state["optimizer"])
        for changed in list_changed(module.inputs, state.get("inputs", {})):
            log.warning(changed)
        module.load_state(tensors["module"])
        if state.get("run", record.id) != record.id:
            log.warning(OF_ANOTHER_RUN, found.path, state["run"], record.id)
        for one in callbacks:
            if (own := state.get("callbacks", {}).get(one.state_key)) is not None:
                one.load_state_dict(own)
    if distributed.rank() == 0:
        record.cut(found.step)
        for lost in record.find_missing_lines(found.step):
            log.warning(lost)
    return found.step


def newest_policy(run_dir: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], int]:
    """The weights and the state of the policy in the newest complete checkpoint of a run, and the
    number of iterations that led to it.

    Of any shape [...]. Raises ValueError if there is none.
    """
    found = find_newest_whole(run_dir / FOLDER)
    for reason in found.skipped:
        log.warning(reason)
    if found.path is None:
        raise ValueError(f"{run_dir} has no complete checkpoint; give the directory of a run")
    tensors = read(found.path)[0]
    return tensors["policy"], select_prefix(tensors["module"], "policy."), found.step
