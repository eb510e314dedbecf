"""Experience: rows ready for training, split into updates of whole groups, and those into
micro-batches that fit in memory."""

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

FIRST = torch.zeros(
    1, dtype=torch.int64
)  # a rank without rows takes part with its first, at weight 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience(Shaped):
    """Rows that are ready for training."""

    axes: ClassVar = {
        **dict.fromkeys(("rollout.mask", "advantages", "returns", "weights"), "BT"),
        "gates": "B",
        "statistics": "BT*",  # several numbers per step are further axes
    }

    rollout: Rollout
    scores: Scores
    advantages: Tensor  # [B, T]
    returns: Tensor | None = None  # [B, T] targets of the critic; None: no critic
    # Per loss term, for one update: the weight of each step, and the term's batch statistics.
    weights: Mapping[str, Tensor] = field(default_factory=dict)  # [B, T]
    statistics: Mapping[str, Tensor] = field(default_factory=dict)  # [B, T, ...]
    # Per loss term, the rows that it applies to, [B] bool; all rows for a term without an entry.
    gates: Mapping[str, Tensor] = field(default_factory=dict)
    # The policy's forward pass with gradient, if it ran before the split into micro-batches.
    record: CoupledBatch | DecoupledBatch | MatchingBatch | None = None


def select_rows(experience: Experience, rows: Tensor) -> Experience:
    """The chosen rows, cut to their longest row. `rows`: [N] int64."""
    chosen = take(experience, rows)
    rollout, returns = chosen.rollout, chosen.returns
    painted = 0 if rollout.segment is None else rollout.segment.sum(1)  # denoising steps
    column = torch.arange(rollout.mask.shape[1], device=rollout.mask.device)
    trained = (rollout.mask * (column + 1)).amax(1)  # up to the last trained step
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
    """The same rows without trained steps: their weight is 0, and `split_groups` ignores them."""
    return replace(rollout, mask=torch.zeros_like(rollout.mask))


def split_groups(experience: Experience, num_minibatches: int, key: int) -> Iterator[Experience]:
    """The rows of each update: a keyed shuffle of whole groups, split evenly.

    Only groups with a trained step on any rank are split, so every rank finds the same split. If
    they are fewer than `num_minibatches` (a filter or a mask removed the others), each group is one
    update. A rank without rows of an update takes part with a row without trained steps.
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
    """Micro-batches of the rows that count, within the budget; every rank has the same number of
    them, padded with idle ones of weight 0.

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
    # The first backward would free a graph that several micro-batches share.
    assert count == 1 or minibatch.record is None
    parts = [select_rows(minibatch, rows[part.to(rows.device)]) for part in cut]
    idle = parts[0] if parts else select_rows(minibatch, FIRST)
    idle = replace(idle, weights={name: 0 * weight for name, weight in idle.weights.items()})
    return parts + [idle] * (count - len(parts))


def statistics_of(rows: Experience, term: str) -> tuple[Tensor, ...]:
    """The batch statistics of the loss of a term; empty for most losses."""
    return (rows.statistics[term],) if term in rows.statistics else ()


def counting_rows(
    experience: Experience, *, zero_at_zero_advantage: bool, whole_groups: bool
) -> Tensor:
    """Indices of the rows that have a step with a weight in any term of the update.

    `zero_at_zero_advantage`: rows without an advantage do not count; `whole_groups`: if one row
    counts, its whole group does. Shape: [N] int64.
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
    """Size limits of a micro-batch, in steps and rows. A padded row costs as many steps as the
    longest row of its micro-batch, a packed row its own."""

    max_tokens: int | None = None
    rows: int | None = None
    packed: bool = False

    def cut(self, cost: Tensor, group: Tensor | None = None, sizes: Sequence = ()) -> list[Tensor]:
        """Row indices of each micro-batch. cost: [N] steps of a row.

        Padded rows of similar lengths go together; packed rows are dealt into parts of nearly
        equal sums. With `group` [N] a group's rows stay together, even above the budget; images of
        different `sizes` are never mixed.
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
        """Unit indices of each part, padded. cost: [N] steps of a unit's longest row; `rows`: rows
        of the largest unit."""
        order = cost.argsort(descending=True, stable=True).cpu()
        parts, start = [], 0
        while start < len(order):
            longest, left = int(cost[order[start]]), len(order) - start
            limits = [left]
            if self.rows is not None:
                limits.append(self.rows // rows)
            if self.max_tokens is not None:
                limits.append(self.max_tokens // max(longest * rows, 1))
            # Even parts, not full ones and a remainder: BLAS computes a single row differently.
            size = math.ceil(left / math.ceil(left / max(1, min(limits))))
            parts.append(order[start : start + size])
            start += size
        return parts

    def _share_out(self, cost: Tensor, rows: int) -> list[Tensor]:
        """Unit indices of each part, packed. cost: [N] steps of a whole unit; `rows`: rows of the
        largest unit."""
        sizes = cost.tolist()
        most = max(len(sizes) if self.rows is None else self.rows // rows, 1)
        room = sum(sizes) if self.max_tokens is None else self.max_tokens
        large = [[unit] for unit, size in enumerate(sizes) if size > room]
        others = [unit for unit, size in enumerate(sizes) if size <= room]
        found = _fewest([sizes[unit] for unit in others], room=room, most=most)
        return [torch.tensor(part) for part in [*large, *([others[i] for i in p] for p in found)]]


def _fewest(sizes: Sequence[int], *, room: int, most: int) -> list[list[int]]:
    """The fewest parts that hold at most `room` steps and `most` units each."""
    least = max(math.ceil(sum(sizes) / max(room, 1)), math.ceil(len(sizes) / most), 1)
    for count in range(least, len(sizes)):
        parts = shares(sizes, count, most)
        if max(sum(sizes[unit] for unit in part) for part in parts) <= room:
            return parts
    return shares(sizes, len(sizes), most)


def shares(sizes: Sequence[int], count: int, most: int | None = None) -> list[list[int]]:
    """Indices in `count` parts of nearly equal sums: the largest first, each into the part with
    the smallest sum so far. No part is empty or has more than `most` units.

    The largest sum exceeds the mean by less than its last and smallest unit.
    """
    parts: list[list[int]] = [[] for _ in range(count)]
    held = [(0, part) for part in range(count)]
    for unit in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        load, part = heappop(held)
        parts[part].append(unit)
        if most is None or len(parts[part]) < most:
            heappush(held, (load + sizes[unit], part))
    return [part for part in parts if part]
