"""The base of every policy: a module in eval mode whose trained weights have names, and a check of
what its sampler says against the training forward."""

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
from tandem.types import Evidence, Rollout, take

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

UNKNOWN, DIFFERENT, REUSED = -1, 0, 1
FEW = 16  # rows that are asked again
PROBED = 4  # rows of older weights that are asked again in every iteration


class Policy(nn.Module, ABC):
    """Has no weights before `load`. A subclass says in `trainable` which of them learn."""

    sees = False  # whether it looks at the pictures of a prompt
    paints = False  # whether a prompt may ask it for a picture of some size
    unit = "tokens"  # what a sample is counted in, for people
    # Why a sampler and its trainer usually disagree, likeliest first, and what varies samples.
    disagrees_by = (
        "another temperature, rollout.top_p or rollout.top_k on one side; stale weights in the "
        "engine; token ids shifted by one; a lower dtype"
    )
    disagreement = 0.0  # nats per step on average, as measured on a few rows; 0: they are one
    largest_disagreement = 0.0  # nats of one step, where the sampler is to be exact
    varies_by = "rollout.temperature"
    iteration = 0  # that the next samples belong to: it may name their draws
    samples_ahead = False  # whether an engine samples for later iterations while this one trains
    packs = False  # whether a row costs a pass its own steps, not those of the longest beside it
    exact: bool  # whether a log-probability comes out the same in any batch, to 1e-4
    same = 1e-4  # nats: below it, what the sampler reported is what the training forward gives

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sampler", torch.tensor(UNKNOWN))
        self.lagged = LaggedWeights(self.sampled_weights)
        # The policies of the segments of its samples, by name; "": it has steps of one kind.
        self.parts: Mapping[str, Policy] = {"": self}

    @property
    def device(self) -> torch.device:
        return self.sampler.device  # which goes where the weights go

    def pop_timing(self) -> dict[str, float]:
        """Seconds since the last call that `timing.jsonl` names, beside those of the phases."""
        return {}

    def suspicion(self) -> str:
        """Why its sampler and its trainer differ, as far as can be told."""
        return f"usual causes, in this order: {self.disagrees_by}"

    def ready(self) -> None:
        """All ranks are about to sample, with the newest weights."""

    def notify(self, event: Literal["update", "iteration"]) -> None:
        """An optimiser has made a step, or an iteration is over."""

    def renew_reference(self) -> None:
        """From here on the weights of now are the reference; of a policy that provides
        "new_reference"."""
        raise NotImplementedError(f"the reference of {type(self).__name__} stays as it was loaded")

    def describe_steps(self, rollout: Rollout, row: int) -> Sequence[str]:
        """How a row came about, a line for each step, where that is no matter of course."""
        return ()

    def resample_noise(self, rollout: Rollout, epoch: int) -> Rollout:
        """The same rows for another pass over them, of epoch 1 or later.

        Noise that a policy puts on its rows may be new, if nothing else is known of the old one.
        """
        return rollout

    def summon_full_params(
        self, sampling: object = None, needs: frozenset[str] = frozenset()
    ) -> AbstractContextManager[None]:
        """A block with all weights on every rank: those that a sampling names (None: the policy's
        own), and those that `complete` reads to fill `needs`.

        Within it a rank calls `sample` with that sampling, and `complete`, as often as it has rows
        for. All ranks begin it equally often; no rank waits for another to end it.
        """
        return nullcontext()

    @abstractmethod
    def evidence(self, rollout: Rollout, needs: frozenset[str]) -> Evidence:
        """What the weights say of the steps of these rows, with gradient."""

    @torch.no_grad()
    def logp(self, rows: Rollout) -> Tensor:
        """Log-probabilities of the steps by the training forward, [B, T] nats."""
        return self.evidence(rows, frozenset()).logp

    def trusts(self, rollout: Rollout) -> bool:
        """Whether the sampler's log-probabilities serve as the trainer's: never those of older
        weights.

        Measured once, on a few rows of the first fresh rollout of all ranks; the verdict is part of
        the state.
        """
        if not is_fresh(rollout):
            return False
        if self.sampler == UNKNOWN:
            rows = take_few(rollout)
            gap = logp_gap(rows, self.logp(rows))
            largest = distributed.all_max(torch.cat([gap.flatten(), gap.new_zeros(1)]).max())
            agrees = self.exact and largest < self.same
            self.sampler.fill_(REUSED if agrees else DIFFERENT)
        return bool(self.sampler == REUSED)

    # Samples of older weights.

    def sampled_weights(self) -> dict[str, Tensor]:
        """What learns and is sampled from. Of any shape [...]."""
        return dict(self.trainable())

    @contextmanager
    def lagging(self) -> Iterator[int]:
        """With the weights that the samples of this iteration come from in place of the live ones;
        gives their age in iterations."""
        with self.lagged.under(self.iteration) as gap:
            yield gap

    def compare_with_sampler(self, rollout: Rollout) -> None:
        """Measure the disagreement on a few rows, under the very weights that sampled them: the
        guard of the first update cannot, once there are newer ones."""
        if rollout.behaviour_logp is None:
            return
        rows = take_few(rollout, PROBED)
        logp = self.logp(rows)
        self.disagreement = mean_gap(rows, logp)
        largest = torch.cat([logp_gap(rows, logp).flatten(), logp.new_zeros(1)]).max()
        self.largest_disagreement = float(distributed.all_max(largest))

    def shard(self, mesh: DeviceMesh) -> None:
        """Cut all weights over the ranks of a mesh, once.

        From then on all ranks call `evidence` and `errors` equally often, as they wait for one
        another there, and begin `summon_full_params`, `save`, and, outside of the former, `sample`
        and `complete` equally often. Raises ValueError where the policy cannot be cut.
        """
        raise ValueError(f"{type(self).__name__} cannot be cut over ranks; set trainer=ddp")

    @abstractmethod
    def trainable(self) -> dict[str, nn.Parameter]:
        """All that learns, by name."""

    def train(self, mode: bool = True) -> Self:
        """The networks stay in eval mode: no dropout, in sampling as in training."""
        super().train(mode)
        for child in self.children():
            child.eval()
        return self

    def weights(self) -> dict[str, Tensor]:
        """What a checkpoint holds: all that is trained. Of any shape [...]."""
        return {name: parameter.detach() for name, parameter in self.trainable().items()}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy into the tensors that are there, so that an optimiser keeps its hold of them.

        Of any shape [...].
        """
        copy_into(self.trainable(), weights)


def is_fresh(rollout: Rollout) -> bool:
    """Whether all rows of all ranks were sampled from the weights as they are."""
    gap = rollout.version_gap
    oldest = torch.zeros(()) if gap is None else gap.max().float()
    return bool(distributed.all_max(oldest) == 0)


def take_few(rollout: Rollout, count: int = FEW) -> Rollout:
    """Some rows that have a step; the first row where none has, since all episodes were lost."""
    rows = rollout.mask.any(1).nonzero()[:count, 0]
    return take(rollout, rows if len(rows) else torch.zeros_like(rollout.group[:1]))


def logp_gap(rows: Rollout, logp: Tensor) -> Tensor:
    """|logp - that of the sampler| of every step, [B, T]; 0 outside the mask."""
    return torch.where(rows.mask, logp - rows.behaviour_logp, 0).abs()


def mean_gap(rows: Rollout, logp: Tensor) -> float:
    """Mean |difference| over the masked steps of the rows of all ranks, nats. `logp`: [B, T]."""
    sums = torch.stack([logp_gap(rows, logp).sum(), rows.mask.sum()]).double()
    total, count = distributed.all_sum(sums).tolist()
    return total / max(count, 1)
