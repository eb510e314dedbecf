"""The objective of an update: a sum of terms, each a loss per step times its weights.

An objective requests from the policy only what its terms read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from tandem import distributed
from tandem.algorithm.part_checks import (
    Record,
    as_if_moved,
    is_unproven,
    judge_alone,
    refuse_pull,
    statistics_by,
)
from tandem.contracts import batch_statistics_of, facts_of, metrics_of, parts_of, summary_of
from tandem.contracts.inner_parts import ask_inner
from tandem.contracts.outputs import CORRECTION, LOSS, WEIGHTS, find_wider, refuse_name
from tandem.contracts.parts import callable_name, place_of
from tandem.contracts.wrong_output import WrongOutput, wrong_value
from tandem.experience import Budget, Experience, select_rows, statistics_of
from tandem.losses import importance
from tandem.losses.adapted import refuse_part
from tandem.metrics import Metric
from tandem.types import Summary, concat, pad_steps, take

# Mask [B, T] of an update, and the turn of each step if it is read -> weight [B, T].
Weigh = Callable[..., Tensor]
POLICY = "policy"  # the term that a correction multiplies
KL = "kl"  # the term whose mean is logged without its coefficient


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A loss or penalty, its coefficient and its step weights."""

    loss: Callable[..., Tensor]
    coef: float | nn.Module  # a module: a number that a controller changes
    weights: Weigh
    correction: importance.Correction = importance.none
    may_be_constant: bool = False  # such as the entropy of a Gaussian step: no gradient required

    @property
    def exists(self) -> bool:
        return self.coef != 0  # true of a module, whatever its number is now

    @property
    def needs(self) -> frozenset[str]:
        """The fields that the loss and the correction read, and parts of them, such as the weight
        of a step."""
        parts = [*parts_of(self.loss), *parts_of(self.correction)]
        return frozenset().union(*(facts_of(part).reads for part in parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The loss and the metrics of one micro-batch."""

    loss: Tensor  # scalar
    parts: Mapping[str, Tensor]  # term -> its part of the loss, detached
    metrics: Mapping[str, Metric]


class Objective(ABC):
    """A sum of terms over the outputs of a policy. Terms with coefficient 0 are dropped."""

    needs: frozenset[str]  # fields requested from the policy
    of_first_update: frozenset[str] = frozenset()  # metrics that later updates do not measure

    def __init__(self, terms: Mapping[str, Term]) -> None:
        self.terms = {name: term for name, term in terms.items() if term.exists}
        self.facts = {name: facts_of(term.loss) for name, term in self.terms.items()}
        self.zero_at_zero_advantage = all(x.zero_at_zero_advantage for x in self.facts.values())
        self.whole_groups = any(own.whole_groups for own in self.facts.values())
        # Terms that correct rows sampled by other weights.
        self.corrected = {n for n, t in self.terms.items() if not facts_of(t.correction).neutral}
        self.judged: set[str] = set()  # terms that use scored rows only
        self.weighed_by_turn = {
            name for name, term in self.terms.items() if "turn" in facts_of(term.weights).reads
        }
        self.metrics = {name: metrics_of(term.loss) for name, term in self.terms.items()}
        self.metrics_of_corrections = {n: metrics_of(t.correction) for n, t in self.terms.items()}
        declared = {name: batch_statistics_of(term.loss) for name, term in self.terms.items()}
        self.statistics = {name: find for name, find in declared.items() if find is not None}
        self.unchecked = set(self.terms)
        self.unproven = {name for name, term in self.terms.items() if is_unproven(term.loss)}

    @abstractmethod
    def record(self, policy, rows: Experience) -> Record:
        """The outputs of the policy for these rows, with gradient; 0 outside the mask."""

    def by_term(self, record: Record) -> dict[str, Record]:
        """The record in the form that each term's loss takes, by term."""
        return dict.fromkeys(self.terms, record)

    @abstractmethod
    def measure(self, record: Record, rows: Experience) -> dict[str, Metric]:
        """Metrics of a record, without gradient. Its mask has the steps that count in some term; an
        idle micro-batch has none, so it adds nothing."""

    def measure_parts(
        self, metrics: dict[str, Metric], records: Mapping[str, Record], rows: Experience
    ) -> dict[str, Metric]:
        """Add what corrections and losses measure on the records of their terms. Of two terms with
        the same loss, the second adds its own name to the metrics."""
        for name in self.corrected:
            correction, record = self.terms[name].correction, records[name]
            metrics |= importance.effect(record, correction(record))
            if (measure := self.metrics_of_corrections[name]) is not None:
                add_metrics(metrics, measure, record, part=correction)
        asked: list[Callable] = []
        for name, record in records.items():
            if (measure := self.metrics[name]) is not None:
                suffix = f".{name}" if measure.func in asked else ""
                read = (record, *statistics_of(rows, name))
                add_metrics(metrics, measure, *read, part=self.terms[name].loss, suffix=suffix)
                asked.append(measure.func)
        return metrics

    def weigh(self, rows: Experience) -> dict[str, Tensor]:
        """The weights of every term over one update, [B, T]; `rows` are those of this rank.

        0 where the gate of a term is closed, which does not change the weights of other rows.
        """
        rollout, scored, found = rows.rollout, rows.scores.scored[:, None], {}
        trained, turn = rollout.trained, rollout.turn
        for name, term in self.terms.items():
            mask = trained & scored if name in self.judged else trained
            moves = mask.long() if turn is None else turn  # without an environment: one move
            read = (moves,) if name in self.weighed_by_turn else ()
            ask = WEIGHTS.ask_twice if name in self.unchecked else WEIGHTS.ask
            found[name] = distributed.with_all_rows(partial(ask, term.weights), mask, *read)
            found[name] = torch.where(mask, found[name], 0)  # 0 outside the mask
            if name in rows.gates:
                found[name] = found[name] * rows.gates[name][:, None]
        return found

    def add_statistics(self, policy, rows: Experience, budget: Budget) -> Experience:
        """Compute statistics over all rows of an update, before any split; most losses need none.

        If one forward pass holds all rows, the outputs of the policy are reused.
        """
        if not self.statistics:
            return rows
        sizes = [prompt.size for prompt in rows.rollout.prompts]
        parts = budget.cut(policy.row_cost(rows.rollout), sizes=sizes)
        most = distributed.all_max(torch.tensor(len(parts)))
        alone = int(most) == 1 and not self.whole_groups  # the split may differ otherwise
        seen: dict[str, list[Record | Summary]] = {name: [] for name in self.statistics}
        # A rank with fewer parts repeats its last one: with sharding all ranks must take part.
        for number in range(int(most)):
            part = parts[min(number, len(parts) - 1)]
            with torch.set_grad_enabled(alone):
                record = self.record(policy, select_rows(rows, part))
            with torch.no_grad():
                for name, own in seen.items() if number < len(parts) else ():
                    own.append(statistics_input(self.terms[name].loss, self.by_term(record)[name]))
        order, width = torch.cat(list(parts)).argsort(), rows.rollout.mask.shape[1]
        statistics: dict[str, Tensor] = {}
        for name, find in self.statistics.items():
            own = take(concat(seen[name]), order)
            with torch.no_grad():
                found = distributed.with_all_rows(partial(statistics_by, find), own)
            statistics[name] = pad_steps(found, width)
        return replace(rows, statistics=statistics, record=take(record, order) if alone else None)

    def __call__(self, policy, rows: Experience) -> Outcome:
        record = self.record(policy, rows) if rows.record is None else rows.record
        parts = {name: self.part(name, seen, rows) for name, seen in self.by_term(record).items()}
        counts = torch.stack([weight != 0 for weight in rows.weights.values()]).any(0)
        with torch.no_grad():
            metrics = self.measure(replace(record, mask=record.mask & counts), rows)
        loss = sum(parts.values())
        if POLICY not in parts or not parts[POLICY].requires_grad:  # DDP waits for all gradients
            loss = loss + 0 * record.evidence.sum()
        return Outcome(loss=loss, parts={n: x.detach() for n, x in parts.items()}, metrics=metrics)

    def part(self, name: str, batch: Record, rows: Experience) -> Tensor:
        """One term: sum of coef * loss * correction * weight over its record.

        A scalar.
        """
        term = self.terms[name]
        learns = batch.evidence.requires_grad and not term.may_be_constant
        statistics = statistics_of(rows, name)
        loss = LOSS.ask(term.loss, batch, *statistics, mask=batch.mask, learns=learns)
        weight = rows.weights[name]
        counts = weight != 0  # elsewhere a loss may be NaN, but not its derivative
        if self.facts[name].averages:
            refuse_part(term.loss, weight)
        if name in self.corrected:
            judged = counts & loss.isfinite()  # a loss that is already NaN is not its fault
            weight = weight * CORRECTION.ask(term.correction, batch, mask=judged)
        if name in self.unchecked and loss.any():
            self.check(name, batch, rows, loss.detach())
        return float(term.coef) * torch.where(counts, loss * weight, 0).sum()

    def check(self, name: str, batch: Record, rows: Experience, loss: Tensor) -> None:
        """The checks of a loss and its correction that are made once, on the first rows where the
        loss, [B, T], is not 0. Raises WrongOutput."""
        term = self.terms[name]
        if name in self.unproven:
            self.unproven.remove(name)
            for rows_as in (batch, as_if_moved(batch)):
                refuse_pull(term.loss, rows_as, *statistics_of(rows, name))
        corrections = [term.correction] if name in self.corrected else []
        shorter = rows.rollout.length < batch.mask.shape[1]  # never of denoising steps
        if len(loss) > 1 and judge_alone(term.loss, corrections, batch, loss, padded=shorter.any()):
            self.unchecked.remove(name)


def add_metrics(
    metrics: dict[str, Metric],
    measure: Callable[..., Mapping[str, Metric]],
    *records: object,
    part: Callable,
    suffix: str = "",
) -> None:
    """Add what a part measures on these records, with a suffix to its names. Raises WrongOutput
    as `refuse_name`, and for anything else than records of `tandem.metrics` with scalars."""
    found = measure(*records)
    if not isinstance(found, Mapping):
        raise wrong_value(measure, found, "a dict of names to records of tandem.metrics")
    for name, value in found.items():
        if not isinstance(value, Metric):
            want = f"{name} as a record of tandem.metrics, such as masked_mean(x, batch.mask)"
            raise wrong_value(measure, value, want)
        refuse_name(f"{name}{suffix}", part, metrics)
        if (fault := find_wider(value)) is not None:
            said = f"{callable_name(part)} at {place_of(part)} measures {name!r} as {fault}; "
            raise WrongOutput(said + "give it scalars, such as x.sum() or x.max()")
        metrics[f"{name}{suffix}"] = value


def statistics_input(loss: Callable, batch: Record) -> Record | Summary:
    """The input of the batch statistics of a loss for these rows."""
    of = summary_of(loss)
    if of is None:
        return batch
    value = ask_inner(of, batch, shape=batch.mask.shape, axes="[B, T]")
    return Summary(value=value, advantages=batch.advantages, mask=batch.mask, group=batch.group)
