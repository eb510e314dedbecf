"""Rows that are ready to be trained on, and their cut: into updates by whole groups, and those into
micro-batches by memory alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import ClassVar

import torch
from torch import Tensor

from tandem import distributed, rng
from tandem.types import (
    PER_STEP,
    CoupledBatch,
    DecoupledBatch,
    MatchingBatch,
    Rollout,
    Scores,
    Shaped,
    alike,
    map_fields,
    take,
)

FIRST = torch.zeros(1, dtype=torch.int64)  # the row that a rank without any takes part with


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience(Shaped):
    """Rows that are ready to be trained on."""

    axes: ClassVar = {
        **dict.fromkeys(("rollout.mask", "advantages", "returns", "weights"), "BT"),
        "gates": "B",
        "statistics": "BT*",  # a loss may find several numbers for a step, along further axes
    }

    rollout: Rollout
    scores: Scores
    advantages: Tensor  # [B, T]
    returns: Tensor | None = None  # [B, T] what a critic learns; None: there is none
    # Of one update, by term: how much each step counts, and what its loss found in all rows.
    weights: Mapping[str, Tensor] = field(default_factory=dict)  # [B, T]
    statistics: Mapping[str, Tensor] = field(default_factory=dict)  # [B, T, ...]
    # By term, the rows that it holds, [B] bool; a term that is not named holds all.
    gates: Mapping[str, Tensor] = field(default_factory=dict)
    # What the policy said of them, with gradient, if it was asked before the cut.
    record: CoupledBatch | DecoupledBatch | MatchingBatch | None = None


def select_rows(experience: Experience, rows: Tensor) -> Experience:
    """The chosen rows, without the steps that none of them has. `rows`: [N] int64."""
    chosen = take(experience, rows)
    rollout, returns = chosen.rollout, chosen.returns
    painted = 0 if rollout.segment is None else rollout.segment.sum(1)  # denoising steps
    column = torch.arange(rollout.mask.shape[1], device=rollout.mask.device)
    trained = (rollout.mask * (column + 1)).amax(1)  # up to the last step that is
    steps = max(int(torch.maximum(rollout.length + painted, trained).max()), 1)
    if steps >= rollout.mask.shape[1]:
        return chosen
    cut = {name: getattr(rollout, name) for name in ("mask", *PER_STEP)}
    shorter = {name: value[:, :steps] for name, value in cut.items() if value is not None}
    return replace(
        chosen,
        rollout=replace(rollout, **shorter),
        advantages=chosen.advantages[:, :steps],
        returns=None if returns is None else returns[:, :steps],
        weights={name: weight[:, :steps] for name, weight in chosen.weights.items()},
        statistics={name: found[:, :steps] for name, found in chosen.statistics.items()},
        record=map_fields(chosen.record, lambda x: x if x.ndim == 1 else x[:, :steps]),
    )


def unmask(rollout: Rollout) -> Rollout:
    """The same rows without a trained step: they weigh nothing and join no group's cut."""
    return replace(rollout, mask=torch.zeros_like(rollout.mask))


def split_groups(experience: Experience, num_minibatches: int, key: int) -> Iterator[Experience]:
    """The rows of each update: a keyed shuffle of whole groups, cut evenly.

    The groups are those that have a trained step on any rank, so every rank finds the same cut. If
    they are fewer than minibatches (a filter or a mask took the others) they are that many updates.
    A rank that has no row of an update takes part with one without a trained step.
    """
    rollout = experience.rollout
    trained = distributed.gather(rollout.trained.any(1))
    ids = distributed.gather(rollout.group)[trained].unique()
    if not len(ids):
        return
    order = ids[rng.permutation(key, len(ids)).to(ids.device)]
    for own in order.tensor_split(min(num_minibatches, len(order))):
        rows = torch.isin(rollout.group, own).nonzero()[:, 0]
        if len(rows):
            yield select_rows(experience, rows)
        else:
            idle = select_rows(experience, FIRST)
            yield replace(idle, rollout=unmask(idle.rollout))


def even_parts(
    minibatch: Experience,
    cost: Tensor,
    budget: Budget,
    *,
    zero_at_zero_advantage: bool,
    whole_groups: bool,
) -> list[Experience]:
    """The rows that count, cut to the budget; as many parts on every rank, idle ones at weight 0.

    cost: [B] steps that a forward pass reads of each row.
    """
    rows = counting_rows(
        minibatch, zero_at_zero_advantage=zero_at_zero_advantage, whole_groups=whole_groups
    )
    group = minibatch.rollout.group[rows]
    sizes = [prompt.size for prompt in minibatch.rollout.prompts]
    sizes = [sizes[row] for row in rows.tolist()] if len({*sizes}) > 1 else ()
    cut = budget.cut(cost[rows], group if whole_groups else None, sizes)
    count = max(1, int(distributed.all_max(torch.tensor(len(cut)))))
    # A graph that several parts shared would be gone after the first backward.
    assert count == 1 or minibatch.record is None
    parts = [select_rows(minibatch, rows[part.to(rows.device)]) for part in cut]
    idle = parts[0] if parts else select_rows(minibatch, FIRST)
    idle = replace(idle, weights={name: 0 * weight for name, weight in idle.weights.items()})
    return parts + [idle] * (count - len(parts))


def counting_rows(
    experience: Experience, *, zero_at_zero_advantage: bool, whole_groups: bool
) -> Tensor:
    """Indices of the rows of which some step counts in some term of the update.

    `zero_at_zero_advantage`: those without advantage do not; `whole_groups`: with one row counts
    its group. Shape: [N] int64.
    """
    weights = experience.weights.values()
    counts = torch.stack([weight.ne(0).any(1) for weight in weights]).any(0)
    if zero_at_zero_advantage:
        counts &= experience.advantages.ne(0).any(1)
    if whole_groups:
        group = experience.rollout.group
        counts = torch.isin(group, group[counts])
    return counts.nonzero()[:, 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Steps, or rows. A padded row takes as many steps as the longest row beside it, a packed one
    its own."""

    max_tokens: int | None = None
    rows: int | None = None
    packed: bool = False

    def cut(self, cost: Tensor, group: Tensor | None = None, sizes: Sequence = ()) -> list[Tensor]:
        """Row indices of each micro-batch. cost: [N] steps of a row.

        Padded rows are cut with similar lengths together; packed ones into parts of nearly equal
        sums. With `group` [N] the rows of a group stay together, be they more than the budget; rows
        of pictures of several `sizes` never are.
        """
        if len({*sizes}) > 1:
            own = [(rows, None if group is None else group.cpu()[rows]) for rows in alike(sizes)]
            return [rows[part] for rows, of in own for part in self.cut(cost.cpu()[rows], of)]
        if group is None and not self.packed:
            return self._cut(cost, rows=1)
        unit = torch.arange(len(cost)) if group is None else group.unique(return_inverse=True)[1]
        unit, cost = unit.cpu(), cost.cpu()
        counts = torch.bincount(unit)
        largest = int(counts.max()) if len(counts) else 1
        if self.packed:
            parts = self._share_out(torch.zeros_like(counts).index_add(0, unit, cost), largest)
        else:
            longest = torch.zeros_like(counts).scatter_reduce(0, unit, cost, "amax")
            parts = self._cut(longest, rows=largest)
        return [torch.isin(unit, part).nonzero()[:, 0] for part in parts]

    def _cut(self, cost: Tensor, rows: int) -> list[Tensor]:
        """Indices of units of at most so many rows each. cost: [N] steps of a unit's row."""
        order = cost.argsort(descending=True, stable=True).cpu()
        parts, start = [], 0
        while start < len(order):
            longest, left = int(cost[order[start]]), len(order) - start
            limits = [left]
            if self.rows is not None:
                limits.append(self.rows // rows)
            if self.max_tokens is not None:
                limits.append(self.max_tokens // max(longest * rows, 1))
            # Even parts, not full ones and a rest: one row alone takes another code path in BLAS.
            size = math.ceil(left / math.ceil(left / max(1, min(limits))))
            parts.append(order[start : start + size])
            start += size
        return parts

    def _share_out(self, cost: Tensor, rows: int) -> list[Tensor]:
        """Indices of units of at most so many rows each. cost: [N] steps of a whole unit."""
        sizes = cost.tolist()
        most = max(len(sizes) if self.rows is None else self.rows // rows, 1)
        room = sum(sizes) if self.max_tokens is None else self.max_tokens
        large = [[unit] for unit, size in enumerate(sizes) if size > room]
        others = [unit for unit, size in enumerate(sizes) if size <= room]
        found = _fewest([sizes[unit] for unit in others], room=room, most=most)
        return [torch.tensor(part) for part in [*large, *([others[i] for i in p] for p in found)]]


def _fewest(sizes: Sequence[int], *, room: int, most: int) -> list[list[int]]:
    """As few parts as there can be with no more than `room` in a part, and `most` units."""
    least = max(math.ceil(sum(sizes) / max(room, 1)), math.ceil(len(sizes) / most), 1)
    for count in range(least, len(sizes)):
        parts = shares(sizes, count, most)
        if max(sum(sizes[unit] for unit in part) for part in parts) <= room:
            return parts
    return shares(sizes, len(sizes), most)


def shares(sizes: Sequence[int], count: int, most: int | None = None) -> list[list[int]]:
    """Indices dealt into `count` parts of nearly equal sums: the largest first, each to the part
    that holds least so far. No part is empty, nor larger than `most`.

    The fullest part exceeds the mean by less than its last and smallest unit.
    """
    parts: list[list[int]] = [[] for _ in range(count)]
    held = [(0, part) for part in range(count)]
    for unit in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        load, part = heappop(held)
        parts[part].append(unit)
        if most is None or len(parts[part]) < most:
            heappush(held, (load + sizes[unit], part))
    return [part for part in parts if part]
