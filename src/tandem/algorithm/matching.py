"""The objective of distribution matching: losses of a generator and of the networks trained beside
it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Protocol

from torch import Tensor

from tandem.algorithm.decoupled import keep_inside
from tandem.algorithm.objective import POLICY, Objective, Term, Weigh, add_metrics
from tandem.contracts import facts_of, positive
from tandem.contracts.outputs import join_metrics
from tandem.dynamics.decays import EmaSchedule
from tandem.dynamics.regression import energy
from tandem.experience import Experience, statistics_of
from tandem.metrics import Metric, masked_mean
from tandem.policies.request import LearnedCopy
from tandem.types import (
    OF_SNAPSHOTS,
    DecoupledBatch,
    MatchingBatch,
    NetworkAnswer,
    Rollout,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The training of a network that starts as a copy of the policy and is trained beside it."""

    loss: Callable[..., Tensor]  # loss of the network, for each step
    lr: Annotated[float, positive]  # learning rate; the schedule of optimizer.lr also applies
    # Whether its prediction uses the guidance of the reference; its own errors never use guidance.
    guided: bool = False

    def request(self, kept: Mapping[str, EmaSchedule]) -> LearnedCopy:
        """The copy of itself that the policy makes, with the averages that the loss reads of `kept`
        (algorithm.ema)."""
        read = {OF_SNAPSHOTS[x] for x in facts_of(self.loss).reads & OF_SNAPSHOTS.keys()}
        snapshots = {name: schedule for name, schedule in kept.items() if name in read}
        return LearnedCopy(guided=self.guided, snapshots=snapshots)

    def term(self, weights: Weigh) -> Term:
        return Term(loss=self.loss, coef=1.0, weights=weights)


class MatchedPolicy(Protocol):
    def matching(
        self, rollout: Rollout, needs: frozenset[str], *, rests: bool
    ) -> tuple[Mapping[str, Tensor], Mapping[str, NetworkAnswer]]: ...


class Matching(Objective):
    """The policy loss over predictions of several networks for its pictures, and a loss of each
    network over its own velocity errors there.

    Without a policy term only the networks are trained. A picture without a score still counts as
    one of the generator's: only losses that depend on scores exclude it.
    """

    def __init__(self, terms: Mapping[str, Term]) -> None:
        super().__init__(terms)
        self.learning = [name for name in self.terms if name != POLICY]
        self.judged = {name for name in self.learning if not self.facts[name].taught}
        self.needs = frozenset().union(*(term.needs for term in self.terms.values()))

    def record(self, policy: MatchedPolicy, rows: Experience) -> MatchingBatch:
        rollout = rows.rollout
        said, networks = policy.matching(rollout, self.needs, rests=POLICY not in self.terms)
        inside = keep_inside(rows, {**said, "networks": networks})
        of_rows = {"group": rollout.group, "key": rollout.key, "scored": rows.scores.scored}
        return MatchingBatch(mask=rollout.mask, **of_rows, **inside)

    def by_term(self, record: MatchingBatch) -> dict[str, MatchingBatch | DecoupledBatch]:
        scored = replace(record, mask=record.mask & record.scored[:, None])
        beside = {
            name: errors_of(scored if name in self.judged else record, name)
            for name in self.learning
        }
        return beside | ({POLICY: record} if POLICY in self.terms else {})

    def measure(self, record: MatchingBatch, rows: Experience) -> dict[str, Metric]:
        metrics: dict[str, Metric] = {}
        for name, batch in self.by_term(record).items():
            own: dict[str, Metric] = {}
            if (measure := self.metrics[name]) is not None:
                read = (batch, *statistics_of(rows, name))
                add_metrics(own, measure, *read, part=self.terms[name].loss)
            if name != POLICY:
                own["velocity_error"] = masked_mean(energy(batch.error), record.mask)
                own = {f"networks/{name}/{said}": x for said, x in own.items()}
            metrics = join_metrics(metrics, own)
        return metrics


def errors_of(record: MatchingBatch, name: str) -> DecoupledBatch:
    """The batch for the loss of a network beside the policy: its own errors."""
    answer = record.networks[name]
    return DecoupledBatch(
        error=answer.error,
        sigma=record.sigma,
        importance=record.importance,
        advantages=record.advantages,
        mask=record.mask,
        group=record.group,
        key=record.key,
        version_gap=record.version_gap,
        ref_error=record.ref_error,
        old_error=answer.old_error,
        fast_error=answer.fast_error,
    )
