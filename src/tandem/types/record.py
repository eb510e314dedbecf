"""The algebra of records: rows chosen, rows stacked, every tensor changed, shapes checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

Record = TypeVar("Record")


class LossBatch:
    """What a loss sees of rows. One of its tensors carries the gradient."""

    __slots__ = ()
    carries: ClassVar[str]  # the name of that tensor

    @property
    def evidence(self) -> Tensor:
        """The tensor that carries the gradient of the policy: [B, T], or [B, T, D]."""
        return getattr(self, self.carries)


def check_shapes(owner: str, tensors: Mapping[str, Tensor | None], want: tuple[int, ...]) -> None:
    """Raise ValueError for the first tensor whose shape is not [want, ...], naming its owner."""
    for name, tensor in tensors.items():
        if tensor is not None and tuple(tensor.shape) != want:
            raise ValueError(f"{owner}.{name} is {tuple(tensor.shape)}, but it should be {want}")


def mask_without(rows: Tensor | None, mask: Tensor) -> Tensor:
    """[B, T] bool: the mask, but False on the chosen rows. rows: [B] bool; None: there are none."""
    return mask if rows is None else mask & ~rows[:, None]


def take(record: Record, rows: Tensor) -> Record:
    """The chosen rows of every tensor and tuple of a record. rows: [N] int64 -> B becomes N."""
    return map_fields(
        record,
        lambda value: (
            value[rows.to(value.device)]
            if isinstance(value, Tensor)
            else tuple(value[row] for row in rows.tolist())
        ),
    )


def concat(records: Sequence[Record]) -> Record:
    """Stack records along B; shorter T are padded with 0 on the right."""
    if len(records) == 1:
        return records[0]
    first = records[0]
    return map_fields(first, lambda *values: _join(values), *records[1:])


def _join(values: tuple) -> Tensor | tuple:
    if isinstance(values[0], tuple):
        return sum(values, ())
    if values[0].ndim == 1:
        return torch.cat(values)
    width = max(value.shape[1] for value in values)
    return torch.cat([pad_steps(value, width) for value in values])


def pad_steps(value: Tensor, width: int) -> Tensor:
    """[B, T, ...] -> [B, width, ...], zeros on the right."""
    behind = (0, 0) * (value.ndim - 2)  # named from the last axis on
    return torch.nn.functional.pad(value, (*behind, 0, width - value.shape[1]))


def map_fields(record: Record, change: Callable, *others: Record) -> Record:
    """Rebuild a record (nested ones too) with `change` applied to each tensor and tuple in it.

    Raises TypeError for a field that is neither.
    """
    if record is None:
        return None
    if isinstance(record, Tensor | tuple):
        return change(record, *others)
    if isinstance(record, Mapping):
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
