"""The objective of a generator that is led from one score to another, and of the networks beside
it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Protocol

import torch
from torch import Tensor

from tandem.algorithm.objective import POLICY, Objective, Term, Weigh, counted, found
from tandem.contracts import positive
from tandem.dynamics.regression import energy
from tandem.experience import Experience
from tandem.metrics import Metric, masked_mean
from tandem.types import DecoupledBatch, MatchingBatch, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What a network learns that begins as a copy of the policy and stays beside it."""

    loss: Callable[..., Tensor]
    lr: Annotated[float, positive]  # the schedule of the optimizer applies to it too

    def term(self, weights: Weigh) -> Term:
        return Term(loss=self.loss, coef=1.0, weights=weights)


class MatchedPolicy(Protocol):
    def matching(
        self, rollout: Rollout, needs: frozenset[str], *, rests: bool
    ) -> Mapping[str, Tensor]: ...


class Matching(Objective):
    """The loss of the policy over what several networks expect of its pictures, and a loss of each
    network that learns beside it, over its own velocity errors there.

    Without a term of the policy, that rests, and the others learn alone. A picture without a score
    is one of the generator's all the same: only losses that scores decide go without it.
    """

    def __init__(self, terms: Mapping[str, Term]) -> None:
        super().__init__(terms)
        self.learning = [name for name in self.terms if name != POLICY]
        read = frozenset().union(*(term.needs for term in self.terms.values()))
        self.needs = read | {f"{name}_error" for name in self.learning}

    def record(self, policy: MatchedPolicy, rows: Experience) -> MatchingBatch:
        rollout = rows.rollout
        said = policy.matching(rollout, self.needs, rests=POLICY not in self.terms)
        inside = {
            name: torch.where(rollout.mask[..., None] if x.ndim == 3 else rollout.mask, x, 0)
            for name, x in ({**said, "advantages": rows.advantages}).items()
        }
        scored = rows.scores.scored
        return MatchingBatch(mask=rollout.mask, group=rollout.group, scored=scored, **inside)

    def seen(self, record: MatchingBatch) -> dict[str, MatchingBatch | DecoupledBatch]:
        own = {"fake": record.fake_error, "surrogate": record.surrogate_error}
        judged = replace(record, mask=record.mask & record.scored[:, None])
        beside = {
            name: errors_of(record if self.facts[name].taught else judged, own[name])
            for name in self.learning
        }
        return beside | ({POLICY: record} if POLICY in self.terms else {})

    def measure(self, record: MatchingBatch, rows: Experience) -> dict[str, Metric]:
        """Over the steps that count: an idle micro-batch adds nothing."""
        record, metrics = replace(record, mask=record.mask & counted(rows)), {}
        for name, batch in self.seen(record).items():
            if name != POLICY:
                metrics[f"{name}/velocity_error"] = masked_mean(energy(batch.error), record.mask)
            if self.metrics[name] is not None:
                metrics |= self.metrics[name](batch, *found(rows, name))
        return metrics


def errors_of(record: MatchingBatch, error: Tensor) -> DecoupledBatch:
    """What the loss of a network beside the policy sees; error: its own, [B, T, D]."""
    return DecoupledBatch(
        error=error,
        sigma=record.sigma,
        importance=record.importance,
        advantages=record.advantages,
        mask=record.mask,
        group=record.group,
        ref_error=record.ref_error,
        fast_error=record.fast_error,
    )
