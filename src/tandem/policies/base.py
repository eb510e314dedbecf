"""The base class of policies: a module in eval mode with named trained weights, and a comparison of
its sampler with its training forward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Literal, Self

import torch
from torch import Tensor, nn

from tandem import distributed
from tandem.policies.lagged import LaggedWeights
from tandem.policies.weights import copy_into
from tandem.types import Evidence, Prompt, Rollout, take

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from tandem.policies.engines.weight_sync import WeightSync
    from tandem.policies.request import Request

UNKNOWN, DIFFERENT, REUSED = -1, 0, 1
FEW = 16  # rows on which sampler and trainer are compared
PROBED = 4  # the same for rows of older weights, in every iteration


class Policy(nn.Module, ABC):
    """A model that samples and is trained. It has no weights before `load`; a subclass defines in
    `trainable` which of them are trained."""

    sees = False  # whether it reads the images of a prompt
    paints = False  # whether a prompt may ask for an image of some size
    unit = "tokens"  # in which displays count samples
    # Usual causes of a disagreement between sampler and trainer, most likely first, and the option
    # that makes samples vary.
    disagrees_by = (
        "different temperatures, rollout.top_p or rollout.top_k; stale weights in the engine; "
        "token ids shifted by one; a lower dtype"
    )
    disagreement = 0.0  # nats per step, mean over a few rows; 0: the same weights sample and train
    largest_disagreement = 0.0  # nats of one step, for a sampler that should be exact
    varies_by: str | None = "rollout.temperature"
    iteration = 0  # of the next samples; part of the key of their noise
    samples_ahead = False  # whether an engine samples for later iterations during training
    packs = False  # whether a row costs its own steps, not those of the longest row of its pass
    supply: WeightSync | None = None  # of an engine with a copy of the weights; None: no copy
    exact: bool  # whether log-probabilities are the same in any batch, to 1e-4
    same = 1e-4  # nats: a smaller gap between sampler and training forward counts as equal

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sampler", torch.tensor(UNKNOWN))
        self.lagged = LaggedWeights(self.sampled_weights)
        # Policies by segment of a sample; "": a sample has steps of one kind.
        self.parts: Mapping[str, Policy] = {"": self}

    @property
    def device(self) -> torch.device:
        return self.sampler.device  # a buffer, so it moves with the weights

    def pop_timing(self) -> dict[str, float]:
        """Seconds since the last call, by name in `timing.jsonl`, in addition to the phases."""
        return {}

    def suspicion(self) -> str:
        """Likely causes of a disagreement between sampler and trainer."""
        return f"usual causes, in this order: {self.disagrees_by}"

    def refuse_all(self, prompts: Sequence[Prompt], request: Request) -> str | None:
        """The reason to refuse every one of the prompts to train on that is known before weights
        are loaded; None: there is none."""
        return None

    def ready(self) -> None:
        """Prepare for sampling: all ranks are about to sample with the newest weights."""
        if self.supply is not None:
            self.supply.refresh()

    def notify(self, event: Literal["update", "iteration"]) -> None:
        """Tell the policy that an optimiser step was made, or that an iteration has ended."""

    def renew_reference(self) -> None:
        """Make the current weights the reference. Raises NotImplementedError for a policy that does
        not provide "new_reference"."""
        raise NotImplementedError(f"the reference of {type(self).__name__} cannot be renewed")

    def describe_steps(self, rollout: Rollout, row: int) -> Sequence[str]:
        """The history of a row, one line per step, for policies in which it is not obvious."""
        return ()

    def resample_noise(self, rollout: Rollout, epoch: int) -> Rollout:
        """The same rows for another epoch (1 or later).

        A policy may replace the noise of its rows if no stored value depends on the old noise.
        """
        return rollout

    def summon_full_params(
        self, sampling: object = None, needs: frozenset[str] = frozenset()
    ) -> AbstractContextManager[None]:
        """A context with all weights on every rank: those that a sampling names (None: the
        policy's own sampling), and those that `complete` reads to fill `needs`.

        Within it a rank may call `sample` with that sampling, and `complete`, any number of times.
        All ranks enter it equally often; no rank waits for another to leave it.
        """
        return nullcontext()

    @abstractmethod
    def evidence(self, rollout: Rollout, needs: frozenset[str]) -> Evidence:
        """Log-probabilities and other values of the steps of these rows under the current weights,
        [B, T], with gradient. `needs`: the fields of `Evidence` that are read."""

    @torch.no_grad()
    def logp(self, rows: Rollout) -> Tensor:
        """Log-probabilities of the steps by the training forward, [B, T] nats."""
        return self.evidence(rows, frozenset()).logp

    def trusts(self, rollout: Rollout) -> bool:
        """Whether the sampler's log-probabilities replace the trainer's; never for older weights.

        Measured once, on a few rows of the first fresh rollout of all ranks; the result is part of
        the state, and a run that is resumed in a lower precision does not use it.
        """
        if not is_fresh(rollout):
            return False
        if self.sampler == UNKNOWN:
            rows = take_few(rollout)
            gap = logp_gap(rows, self.logp(rows))
            largest = distributed.all_max(torch.cat([gap.flatten(), gap.new_zeros(1)]).max())
            agrees = self.exact and largest < self.same
            self.sampler.fill_(REUSED if agrees else DIFFERENT)
        return self.exact and bool(self.sampler == REUSED)

    # Samples of older weights

    def sampled_weights(self) -> dict[str, Tensor]:
        """The trained weights that the next samples are drawn with: of any shape [...]."""
        return dict(self.trainable())

    @contextmanager
    def lagging(self) -> Iterator[int]:
        """A context in which the weights of this iteration's samples replace the live ones; yields
        their age in iterations."""
        with self.lagged.use(self.iteration) as gap:
            yield gap

    def compare_with_sampler(self, rollout: Rollout) -> None:
        """Measure the disagreement on a few rows, under the weights that sampled them. The guard of
        the first update cannot do it once there are newer weights."""
        if rollout.behaviour_logp is None:
            return
        rows = take_few(rollout, PROBED)
        logp = self.logp(rows)
        self.disagreement = mean_gap(rows, logp)
        largest = torch.cat([logp_gap(rows, logp).flatten(), logp.new_zeros(1)]).max()
        self.largest_disagreement = float(distributed.all_max(largest))

    def shard(self, mesh: DeviceMesh) -> None:
        """Shard all weights over the ranks of a mesh, once.

        From then on all ranks call `evidence` and `errors` equally often, because they wait for one
        another there, and enter `summon_full_params`, `save`, and, outside of the former, `sample`
        and `complete` equally often. Raises ValueError if the policy cannot be sharded.
        """
        raise ValueError(f"{type(self).__name__} cannot be sharded over ranks; set trainer=ddp")

    @abstractmethod
    def trainable(self) -> dict[str, nn.Parameter]:
        """All trained weights, by name."""

    def train(self, mode: bool = True) -> Self:
        """Keep the networks in eval mode: no dropout, in sampling and in training."""
        super().train(mode)
        for child in self.children():
            child.eval()
        return self

    def weights(self) -> dict[str, Tensor]:
        """All trained weights, which a checkpoint holds. Of any shape [...]."""
        return {name: parameter.detach() for name, parameter in self.trainable().items()}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy weights into the existing tensors, so that an optimiser keeps its references.

        Of any shape [...].
        """
        copy_into(self.trainable(), weights)
        if self.supply is not None:
            self.supply.mark_outdated()


def is_fresh(rollout: Rollout) -> bool:
    """Whether all rows of all ranks were sampled from the current weights."""
    gap = rollout.version_gap
    oldest = torch.zeros(()) if gap is None else gap.max().float()
    return bool(distributed.all_max(oldest) == 0)


def take_few(rollout: Rollout, count: int = FEW) -> Rollout:
    """At most `count` rows with a step; the first row if none has one: all episodes were lost."""
    rows = rollout.mask.any(1).nonzero()[:count, 0]
    return take(rollout, rows if len(rows) else torch.zeros_like(rollout.group[:1]))


def logp_gap(rows: Rollout, logp: Tensor) -> Tensor:
    """|logp - sampler's logp| of every step, [B, T]; 0 outside the mask."""
    return torch.where(rows.mask, logp - rows.behaviour_logp, 0).abs()


def mean_gap(rows: Rollout, logp: Tensor) -> float:
    """Mean |difference| over the masked steps of the rows of all ranks, nats. `logp`: [B, T]."""
    sums = torch.stack([logp_gap(rows, logp).sum(), rows.mask.sum()]).double()
    total, count = distributed.all_sum(sums).tolist()
    return total / max(count, 1)
