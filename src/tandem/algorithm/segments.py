"""The objective of samples with a text and a picture: one objective per segment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from tandem.advantages.group import group_sum, number_groups
from tandem.algorithm.coupled import Coupled, CoupledPolicy
from tandem.algorithm.objective import Outcome, Term
from tandem.contracts import facts_of
from tandem.experience import Experience
from tandem.losses.segments import Segment, loss_of, select_segment
from tandem.types import PICTURE, SEGMENTS, TEXT, CoupledBatch, Rollout, Scores

OF_TEXT, OF_PICTURE = {"tokens"}, {"steps", "pictures"}  # domains


class Segmented(Coupled):
    """The mean over the tokens of an update plus `weight` times that over its denoising steps.

    Ratios, clips, weights and metrics are computed per segment, so that the share of a segment does
    not depend on the length of the other. Source: UniGRPO, arXiv:2603.23500.
    """

    def __init__(
        self,
        terms: Mapping[str, Term],
        *,
        old_policy: Callable[[CoupledBatch], Tensor],
        segments: Mapping[str, Segment],
    ) -> None:
        super().__init__(terms, old_policy=old_policy)
        self.segments = segments
        # A frozen segment has no objective.
        self.of = {
            name: Coupled(terms_of(terms, name, segments[name]), old_policy=old_policy)
            for name in SEGMENTS
            if not segments[name].frozen
        }
        self.needs = frozenset().union(*(part.needs for part in self.of.values()))
        of_first = ((metric, name) for name in self.of for metric in self.of[name].of_first_update)
        self.of_first_update = frozenset(of_segment(*one) for one in of_first)

    def unread(self, before: frozenset[str]) -> dict[str, frozenset[str]]:
        """Fields that only other segments read, by segment; `before`: those read of all segments
        before the first update."""
        own = {name: part.needs for name, part in self.of.items()}
        others = self.needs - before
        return {name: others - own.get(name, frozenset()) for name in self.segments}

    def weigh(self, rows: Experience) -> dict[str, Tensor]:
        """Weights [B, T] of each segment, times the weight of the segment."""
        rollout = rows.rollout
        found = {name: torch.zeros_like(rollout.mask, dtype=torch.float32) for name in self.terms}
        for name, part in self.of.items():
            mask = rollout.mask & (rollout.segment == SEGMENTS.index(name))
            own = replace(rows, rollout=replace(rollout, mask=mask))
            for term, weight in part.weigh(own).items():
                found[term] = found[term] + self.segments[name].weight * weight
        return found

    def __call__(self, policy: CoupledPolicy, rows: Experience) -> Outcome:
        record = self.record(policy, rows) if rows.record is None else rows.record
        losses, parts, metrics = [], {}, {}
        for name, objective in self.of.items():
            own = select_segment(record, name)
            weights = {term: weight * own.mask for term, weight in rows.weights.items()}
            said = objective(policy, replace(rows, record=own, weights=weights))
            losses.append(said.loss)
            parts |= {f"{name}/{term}": share for term, share in said.parts.items()}
            metrics |= {of_segment(metric, name): x for metric, x in said.metrics.items()}
        return Outcome(loss=sum(losses), parts=parts, metrics=metrics)


def compare_texts(
    estimate: Callable[..., Tensor],
    scores: Scores,
    rollout: Rollout,
    *,
    mask: Tensor,
    within: Literal["prompt", "text"],
) -> Tensor:
    """Advantages if several rows are pictures of one text. mask: [B, T], like the result.

    A text has the mean score of its pictures and is compared once, in its first row, which trains
    it. A picture is compared with those of its prompt, or `within` its text.
    """
    ids, place = number_groups(rollout.text)
    rows = torch.arange(len(place), device=place.device)
    first = rows.new_full((len(ids),), len(rows)).scatter_reduce(0, place, rows, "amin")[place]
    of_text = mean_of_pictures(scores, rollout.text, rows == first)
    inside = {name: mask & (rollout.segment == i) for i, name in enumerate(SEGMENTS)}
    group = {TEXT: rollout.group, PICTURE: rollout.text if within == TEXT else rollout.group}
    given = {TEXT: of_text, PICTURE: scores}
    total = 0
    for name, own in inside.items():
        found = estimate(given[name], replace(rollout, mask=own, group=group[name]), mask=own)
        total = total + torch.where(own, found, 0)  # an estimate may be anything elsewhere
    return total


def mean_of_pictures(scores: Scores, text: Tensor, first: Tensor) -> Scores:
    """The mean scores of each text's pictures on its first row; other rows have no score, so they
    are excluded from group statistics. text: [B] int64; first: [B] bool."""

    def mean(score: Tensor) -> Tensor:
        known = score.isfinite()
        count = group_sum(known.to(score.dtype), text)
        return group_sum(torch.where(known, score, 0), text) / count  # NaN where none is known

    total = mean(torch.where(scores.scored, scores.total, torch.nan))
    return Scores(
        total=total.nan_to_num(),
        parts={name: mean(part) for name, part in scores.parts.items()},
        judges={name: mean(part) for name, part in scores.judges.items()},
        scored=first & total.isfinite(),
    )


def terms_of(terms: Mapping[str, Term], name: str, segment: Segment) -> dict[str, Term]:
    """The terms of one segment, without optional parts that do not apply there."""
    domains = OF_TEXT if name == TEXT else OF_PICTURE
    found = {}
    for term, whole in terms.items():
        facts, loss = facts_of(whole.loss), loss_of(whole.loss, name, segment)
        if loss is not None and not (facts.where_it_can and domains & facts.refused.keys()):
            found[term] = replace(whole, loss=loss)
    return found


def of_segment(metric: str, name: str) -> str:
    """actor/ratio_mean -> actor/text/ratio_mean."""
    room, _, rest = metric.partition("/")
    return f"{room}/{name}/{rest}"
