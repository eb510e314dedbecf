"""Metrics as sums, maxima and minima: any cut of the batch gives the same values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import islice
from typing import Self

import torch
from torch import Tensor

from tandem import distributed
from tandem.contracts import metrics_of
from tandem.types import CoupledBatch

ROUNDING = 1e-12  # of a sum of squares in float64 that values of float32 went into


class Additive:
    """What adds up field by field, over any cut and over ranks."""

    __slots__ = ()

    def parts(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self)]

    def __add__(self, other: Self) -> Self:
        pairs = zip(self.parts(), other.parts(), strict=True)
        return type(self)(*(one + more for one, more in pairs))


@dataclass(frozen=True, slots=True)
class Sum(Additive):
    """A mean in the making: total / count."""

    total: Tensor
    count: Tensor

    @staticmethod
    def value(total: float, count: float) -> float | None:
        return total / count if count else None


@dataclass(frozen=True, slots=True)
class Max:
    most: Tensor

    def __add__(self, other: Max) -> Max:
        return Max(torch.maximum(self.most, other.most))


@dataclass(frozen=True, slots=True)
class Min:
    least: Tensor

    def __add__(self, other: Min) -> Min:
        return Min(torch.minimum(self.least, other.least))


@dataclass(frozen=True, slots=True)
class EffectiveSize(Additive):
    """Of weights: (sum)^2 / sum of squares / count, 1 where all are alike."""

    total: Tensor
    squares: Tensor
    count: Tensor

    @staticmethod
    def value(total: float, squares: float, count: float) -> float | None:
        return total**2 / (squares * count) if squares else None


@dataclass(frozen=True, slots=True)
class Correlation(Additive):
    """Of pairs (x, y), by Pearson; of no two different x, or y, there is none."""

    count: Tensor
    x: Tensor  # and below the sums of x, y and their products, in float64
    y: Tensor
    xx: Tensor
    yy: Tensor
    xy: Tensor

    @staticmethod
    def value(count: float, x: float, y: float, xx: float, yy: float, xy: float) -> float | None:
        if not count:
            return None
        of_x, of_y = xx - x * x / count, yy - y * y / count
        if of_x <= ROUNDING * xx or of_y <= ROUNDING * yy:
            return None
        return max(-1.0, min((xy - x * y / count) / math.sqrt(of_x * of_y), 1.0))


Metric = Sum | Max | Min | EffectiveSize | Correlation


def reduce_metrics(metrics: Mapping[str, Metric]) -> dict[str, float]:
    """The numbers over all ranks, in two collectives; a mean over nothing is left out."""
    edges = {name: m for name, m in metrics.items() if isinstance(m, Max | Min)}
    sums = {name: m for name, m in metrics.items() if name not in edges}
    added = iter(distributed.all_sum(_column(x for m in sums.values() for x in m.parts())).tolist())
    highest = (m.most if isinstance(m, Max) else -m.least for m in edges.values())
    most = distributed.all_max(_column(highest)).tolist()
    settled = {name: m.value(*islice(added, len(fields(m)))) for name, m in sums.items()}
    signs = [1 if isinstance(m, Max) else -1 for m in edges.values()]
    edge_of = zip(edges, signs, most, strict=True)
    settled |= {n: None if x == -math.inf else s * x for n, s, x in edge_of}  # of nothing: none
    return {name: settled[name] for name in metrics if settled[name] is not None}


def _column(values: Iterable[Tensor]) -> Tensor:
    values = [value.double() for value in values]
    device = next((value.device for value in values if value.device.type != "cpu"), None)
    return torch.stack([value.to(device) for value in values]) if values else torch.zeros(0)


def merge_metrics(into: dict[str, Metric], more: Mapping[str, Metric]) -> None:
    for name, metric in more.items():
        into[name] = into[name] + metric if name in into else metric


def masked_mean(x: Tensor, mask: Tensor) -> Sum:
    """Mean over the steps of the mask."""
    return Sum(torch.where(mask, x, 0).sum(), mask.sum())


def effective_size(weight: Tensor, mask: Tensor) -> EffectiveSize:
    """Of the weights of the steps of the mask."""
    inside = torch.where(mask, weight, 0)
    return EffectiveSize(inside.sum(), inside.square().sum(), mask.sum())


def correlation(x: Tensor, y: Tensor, mask: Tensor) -> Correlation:
    """Over the steps of the mask."""
    x, y = (torch.where(mask, value, 0).double() for value in (x, y))
    products = (x * x, y * y, x * y)
    return Correlation(mask.sum(), *(part.sum() for part in (x, y, *products)))


def own_metrics(loss: Callable, batch: CoupledBatch, *surveyed: Tensor) -> dict[str, Metric]:
    """The metrics that a loss declared, under the numbers bound to the loss."""
    metrics = metrics_of(loss)
    return {} if metrics is None else metrics(batch, *surveyed)
