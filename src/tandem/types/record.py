"""Operations on records: row selection, stacking, mapping of tensors, shape checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

Record = TypeVar("Record")
OF_LATENTS = 4  # axes from which on a tensor holds latents, whose sizes may differ


class LossBatch:
    """The input of a loss. One of its tensors carries the gradient."""

    __slots__ = ()
    carries: ClassVar[str]  # the name of that tensor
    compared_with: ClassVar[tuple[str, ...]]  # the names of those of other policies for its steps

    @property
    def evidence(self) -> Tensor:
        """The tensor that carries the gradient of the policy: [B, T], or [B, T, D]."""
        return getattr(self, self.carries)


class Shaped:
    """A record whose tensor shapes are checked when it is made."""

    __slots__ = ()
    # Field, or FIELD.FIELD of a record in it -> a letter for each axis, such as "BT"; of a mapping,
    # for each tensor in it. An axis is as long as in the first field that has it; "*" at the end:
    # further ones may follow.
    axes: ClassVar[Mapping[str, str]]

    def __post_init__(self) -> None:
        """Raises ValueError for the first tensor of another shape, naming it."""
        lengths: dict[str, int] = {}
        for name, letters in self.axes.items():
            value, axes = attrgetter(name)(self), letters.rstrip("*")
            for own, tensor in (value if isinstance(value, Mapping) else {"": value}).items():
                if tensor is None:
                    continue
                shape = tuple(tensor.shape)[: len(axes) if axes != letters else None]
                lengths = dict(zip(axes, shape, strict=False)) | lengths
                want = tuple(lengths.get(axis, axis) for axis in axes)
                if shape != want:
                    place = ".".join(filter(None, (type(self).__name__, name, own)))
                    raise ValueError(f"{place} is {shape}, but it should be {want}")


class Compared:
    """Rows of which some may be baselines, for comparison only."""

    __slots__ = ()

    @property
    def trained(self) -> Tensor:
        """[B, T] bool: the mask without baseline rows."""
        return self.mask if self.baseline is None else self.mask & ~self.baseline[:, None]


def take(record: Record, rows: Tensor) -> Record:
    """The chosen rows of every tensor and tuple of a record. rows: [N] int64 -> B becomes N."""
    # The indices cross between host and device once, not for every field.
    on, listed = cache(rows.to), cache(rows.tolist)
    return map_fields(
        record,
        lambda value: (
            value[on(value.device)]
            if isinstance(value, Tensor)
            else tuple(value[row] for row in listed())
        ),
    )


def alike(values: Sequence) -> list[Tensor]:
    """The indices of equal values, in order of first appearance: int64 [n] of each."""
    places: dict[object, list[int]] = {}
    for place, value in enumerate(values):
        places.setdefault(value, []).append(place)
    return [torch.tensor(own) for own in places.values()]


def concat(records: Sequence[Record]) -> Record:
    """Stack records along B; shorter T and smaller latents are padded with 0 at the end of each
    axis. A field that is None in one of them is None in the result."""
    if len(records) == 1:
        return records[0]
    return map_fields(records[0], _join, *records[1:])


def _join(*values: Tensor | tuple | None) -> Tensor | tuple | None:
    if any(value is None for value in values):
        return None
    if isinstance(values[0], tuple):
        return sum(values, ())
    if values[0].ndim == 1:
        return torch.cat(values)
    largest = [max(lengths) for lengths in zip(*(x.shape[1:] for x in values), strict=True)]
    lengths = largest if values[0].ndim >= OF_LATENTS else largest[:1]
    return torch.cat([pad_steps(value, *lengths) for value in values])


def pad_steps(value: Tensor, width: int, *others: int) -> Tensor:
    """[B, T, ...] -> [B, width, ...], zeros on the right. others: the lengths of the axes after T,
    in order; those that are not given stay as they are."""
    behind = [0, 0] * (value.ndim - 1)  # a pair for each axis, from the last one on
    for axis, length in enumerate((width, *others), start=1):
        behind[-2 * axis + 1] = length - value.shape[axis]
    return torch.nn.functional.pad(value, behind)


def widen(x: Tensor) -> Tensor:
    """x in float32, or unchanged if it is wider. Of any shape [...]."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def align_level(level: Tensor, x: Tensor) -> Tensor:
    """One number per row, shaped to stand beside the latents of that row: [B] -> [B, 1, ...].

    Raises ValueError where it is no number per row.
    """
    rows = tuple(x.shape[: level.ndim])
    if level.ndim == 0 or tuple(level.shape) != rows or x.ndim == level.ndim:
        raise ValueError(
            f"every row of latents {tuple(x.shape)} needs its own noise level, "
            f"but the levels are {tuple(level.shape)}"
        )
    wide = level.to(torch.promote_types(x.dtype, torch.float32))
    return wide.view(*level.shape, *[1] * (x.ndim - level.ndim))


def map_fields(record: Record, change: Callable, *others: Record) -> Record:
    """Rebuild a record (nested ones too) with `change` applied to each tensor and tuple in it.

    Raises TypeError for a field that is neither.
    """
    match record:
        case None:
            return None
        case Tensor() | tuple():
            return change(record, *others)
        case Mapping():
            return {
                key: map_fields(value, change, *(o[key] for o in others))
                for key, value in record.items()
            }
    if not is_dataclass(record):
        raise TypeError(f"a record holds tensors, tuples and records, not {type(record).__name__}")
    parts = {
        f.name: map_fields(getattr(record, f.name), change, *(getattr(o, f.name) for o in others))
        for f in fields(record)
    }
    return type(record)(**parts)
