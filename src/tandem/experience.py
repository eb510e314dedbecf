"""Rows that are ready to be trained on, and choices among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tandem.types import (
    PER_STEP,
    CoupledBatch,
    DecoupledBatch,
    Rollout,
    Scores,
    check_shapes,
    map_fields,
    take,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """Rows that are ready to be trained on."""

    rollout: Rollout
    scores: Scores
    advantages: Tensor  # [B, T]
    returns: Tensor | None = None  # [B, T] what a critic learns; None: there is none
    # Of one update, by term: how much each step counts, and what its loss found in all rows.
    weights: Mapping[str, Tensor] = field(default_factory=dict)  # [B, T]
    surveyed: Mapping[str, Tensor] = field(default_factory=dict)  # [B, T, ...]
    # What the policy said of them, with gradient, if it was asked before the cut.
    record: CoupledBatch | DecoupledBatch | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.rollout.mask.shape)
        own = {"advantages": self.advantages, "returns": self.returns}
        check_shapes("Experience", own, shape)
        check_shapes("Experience.weights", self.weights, shape)
        # A survey may find several numbers for a step, along further axes.
        found = {
            name: x.flatten(2)[..., 0] if x.ndim > 2 else x for name, x in self.surveyed.items()
        }
        check_shapes("Experience.surveyed", found, shape)


def select_rows(experience: Experience, rows: Tensor) -> Experience:
    """The chosen rows, without the steps that none of them has. `rows`: [N] int64."""
    chosen = take(experience, rows)
    rollout, returns = chosen.rollout, chosen.returns
    steps = max(int(rollout.length.max()), 1)
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
        surveyed={name: found[:, :steps] for name, found in chosen.surveyed.items()},
        record=map_fields(chosen.record, lambda x: x if x.ndim == 1 else x[:, :steps]),
    )


def unmask(rollout: Rollout) -> Rollout:
    """The same rows without a trained step: they weigh nothing and join no group's cut."""
    return replace(rollout, mask=torch.zeros_like(rollout.mask))
