"""Losses of samples with a text and a picture, per segment and in its units."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from typing import Annotated, Literal, TypeVar

import torch
from torch import Tensor

from tandem.contracts import (
    Facts,
    Wrapper,
    at_least,
    facts_of,
    name_of,
    numbers_of,
    positive,
    unwrap_partial,
)
from tandem.types import PICTURE, SEGMENTS, TEXT, CoupledBatch, map_fields

Loss = Callable[[CoupledBatch], Tensor]
Number = TypeVar("Number", float, list[float], tuple[float, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The weight of a segment, and the scale of an algorithm's numbers in it."""

    # Weight of its mean relative to other segments; 0: sampled, not trained.
    weight: Annotated[float, at_least(0)] = 1.0
    lr: Annotated[float, positive] | None = None  # learning rate of its weights; null: optimizer.lr
    # Group that an image is compared in if a text has several: prompt or text.
    within: Literal["prompt", "text"] = "prompt"
    # Factor of clip numbers of one step, like that of dynamics.
    clip_scale: Annotated[float, positive] = 1.0
    sequence_scale: Annotated[float, positive] = 1.0  # factor of clip numbers of a whole sample
    preference_scale: Annotated[float, positive] = 1.0  # factor of preference temperatures

    @property
    def frozen(self) -> bool:
        return self.weight == 0

    def convert(self, number: Number, unit: str) -> Number:
        """A number for tokens, or a list of some, converted to this segment."""
        if isinstance(number, (list, tuple)):
            return type(number)(self.convert(x, unit) for x in number)
        if unit == "ratio":
            return 1 + (number - 1) * self.clip_scale
        scales = {
            "clip": self.clip_scale,
            "sequence": self.sequence_scale,
            "preference": self.preference_scale,
        }
        return number * scales.get(unit, 1.0)


@dataclass(frozen=True, kw_only=True)
class BySegment(Wrapper):
    """One loss of the text and one of its picture, [B, T].

    None: the segment has no loss. Source: UniGRPO, arXiv:2603.23500, has two.
    """

    text: Loss | None  # loss of the text
    picture: Loss | None  # loss of the image

    def own_facts(self, declared: Facts) -> Facts:
        """The union of what both read, and the facts that hold for both."""
        parts = [facts_of(part) for part in self.components().values()]
        return replace(
            declared,
            segments=SEGMENTS,
            reads=frozenset().union(*(part.reads for part in parts)),
            zero_at_zero_advantage=all(part.zero_at_zero_advantage for part in parts),
            whole_groups=any(part.whole_groups for part in parts),
        )

    def components(self) -> dict[str, Loss]:
        parts = {TEXT: self.text, PICTURE: self.picture}
        return {name: part for name, part in parts.items() if part is not None}

    def __call__(self, batch: CoupledBatch) -> Tensor:
        loss = torch.zeros_like(batch.logp)
        for name, part in self.components().items():
            own = select_segment(batch, name)
            loss = torch.where(own.mask, part(own), loss)
        return loss


def select_segment(batch: CoupledBatch, name: str) -> CoupledBatch:
    """The steps of one segment; all others are masked out and 0."""
    mask = batch.mask & (batch.segment == SEGMENTS.index(name))
    inside = map_fields(batch, lambda x: x if x.ndim == 1 else torch.where(mask, x, 0))
    return replace(inside, mask=mask)


def loss_of(loss: Loss, name: str, segment: Segment) -> Loss | None:
    """The loss of one segment, with numbers in its units; None without one."""
    owner = unwrap_partial(loss)[0]
    if isinstance(owner, BySegment):
        own = owner.components().get(name)
        return None if own is None else in_units(own, segment)
    return in_units(loss, segment)


def in_units(loss: Loss, segment: Segment) -> Loss:
    """The loss with all its numbers converted to the units of a segment. Raises ValueError for a
    class whose numbers cannot be read."""
    owner = unwrap_partial(loss)[0]
    units, given = facts_of(loss).units, numbers_of(loss)
    inner = owner.components() if isinstance(owner, Wrapper) else {}
    changed = {name: in_units(part, segment) for name, part in inner.items()}
    if units and not (inspect.isroutine(owner) or is_dataclass(owner)):
        raise ValueError(
            f"{name_of(loss)}: its units cannot be applied in a chain; make the class a dataclass, "
            "or a function"
        )
    for name, unit in units.items():
        if isinstance(given.get(name), int | float | list | tuple):
            changed[name] = segment.convert(given[name], unit)
    if not changed:
        return loss
    return replace(owner, **changed) if is_dataclass(owner) else partial(loss, **changed)
