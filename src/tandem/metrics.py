"""Metrics: sums, maxima and minima that do not depend on micro-batching, and iteration metrics."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from tandem import distributed
from tandem.contracts import metrics_of
from tandem.stop import Stop
from tandem.types import SEGMENTS, TEXT, CoupledBatch, Rollout, Scores

ROUNDING = 1e-12  # relative error of a float64 sum of squares of float32 values


# A metric is a tuple of scalars; each is joined over micro-batches and over ranks.
# `edge`: 1 for a maximum, -1 for a minimum, 0 for sums, from which `value` is computed.
class Sum(NamedTuple):
    """A mean, as total / count."""

    total: Tensor
    count: Tensor
    join = staticmethod(torch.add)
    edge = 0

    @staticmethod
    def value(total: float, count: float) -> float | None:
        return total / count if count else None


class Max(NamedTuple):
    """The largest value over ranks and micro-batches."""

    most: Tensor
    join = staticmethod(torch.maximum)
    edge = 1


class Min(NamedTuple):
    """The smallest value over ranks and micro-batches."""

    least: Tensor
    join = staticmethod(torch.minimum)
    edge = -1


class EffectiveSize(NamedTuple):
    """Relative effective sample size of weights, (sum)^2 / (sum of squares * count); 1 if equal."""

    total: Tensor
    squares: Tensor
    count: Tensor
    join = staticmethod(torch.add)
    edge = 0

    @staticmethod
    def value(total: float, squares: float, count: float) -> float | None:
        return total**2 / (squares * count) if squares else None


class Correlation(NamedTuple):
    """Pearson correlation of pairs (x, y); None if x or y is constant."""

    count: Tensor
    x: Tensor  # sums of x, y and their products, in float64
    y: Tensor
    xx: Tensor
    yy: Tensor
    xy: Tensor
    join = staticmethod(torch.add)
    edge = 0

    @staticmethod
    def value(count: float, x: float, y: float, xx: float, yy: float, xy: float) -> float | None:
        """The coefficient from the count and five sums; None if x or y is constant."""
        if not count:
            return None
        of_x, of_y = xx - x * x / count, yy - y * y / count
        if of_x <= ROUNDING * xx or of_y <= ROUNDING * yy:
            return None
        return max(-1.0, min((xy - x * y / count) / math.sqrt(of_x * of_y), 1.0))


Metric = Sum | Max | Min | EffectiveSize | Correlation


def reduce_metrics(metrics: Mapping[str, Metric]) -> dict[str, float]:
    """The values over all ranks, with one device synchronisation; a mean over nothing is left out.
    Raises Stop for a name whose metrics differ in kind between ranks."""
    if distributed.world_size() > 1:
        metrics = _of_all_ranks(metrics)
    edges = {name: m for name, m in metrics.items() if m.edge}
    sums = {name: m for name, m in metrics.items() if not m.edge}
    signs = [m.edge for m in edges.values()]
    values = [part.double() for m in sums.values() for part in m]
    count = len(values)
    values += [sign * m[0].double() for sign, m in zip(signs, edges.values(), strict=True)]
    device = next((value.device for value in values if value.device.type != "cpu"), None)
    column = torch.stack([value.to(device) for value in values]) if values else torch.zeros(0)
    joined = distributed.all_sum(column[:count]), distributed.all_max(column[count:])
    numbers = iter(torch.cat(joined).tolist())
    found = {name: m.value(*islice(numbers, len(m))) for name, m in sums.items()}
    edge_of = zip(edges, signs, numbers, strict=True)
    found |= {n: None if x == -math.inf else s * x for n, s, x in edge_of}  # None: no values
    return {name: found[name] for name in metrics if found[name] is not None}


def _of_all_ranks(metrics: Mapping[str, Metric]) -> Mapping[str, Metric]:
    """The same names in the same order on every rank; a metric of other ranks alone is empty."""
    own = [(name, type(metric)) for name, metric in metrics.items()]
    mark = zlib.crc32(repr(own).encode())
    high, low = distributed.all_max(torch.tensor([mark, -mark], dtype=torch.float64)).tolist()
    if high + low == 0:
        return metrics
    kinds: dict[str, type[Metric]] = {}
    for name, kind in distributed.all_gather_object(own):
        if kinds.setdefault(name, kind) is not kind:
            raise Stop(
                f"metric {name}: {kinds[name].__name__} on one rank, {kind.__name__} on another"
            )
    return {n: metrics[n] if n in metrics else _empty(kind) for n, kind in kinds.items()}


def _empty(kind: type[Metric]) -> Metric:
    """The metric of no values, which changes nothing that it is joined with."""
    nothing = torch.tensor(-kind.edge * math.inf if kind.edge else 0.0, dtype=torch.float64)
    return kind(*(nothing for _ in kind._fields))


def merge_metrics(into: dict[str, Metric], more: Mapping[str, Metric]) -> None:
    """Join metrics of the same name. Numbers in them become tensors."""
    for name, given in more.items():
        metric = type(given)(*(x if isinstance(x, Tensor) else torch.tensor(x) for x in given))
        known = into.get(name)
        joined = metric if known is None else type(metric)(*map(metric.join, known, metric))
        into[name] = joined


def masked_mean(x: Tensor, mask: Tensor) -> Sum:
    """Mean over the steps of the mask. Both are [B, T], or [B]."""
    return Sum(torch.where(mask, x, 0).sum(), mask.sum())


def correlation(x: Tensor, y: Tensor, mask: Tensor) -> Correlation:
    """Correlation of x and y over the steps of the mask. All are [B, T]."""
    x, y = (torch.where(mask, value, 0).double() for value in (x, y))
    products = (x * x, y * y, x * y)
    return Correlation(mask.sum(), *(part.sum() for part in (x, y, *products)))


def own_metrics(loss: Callable, batch: CoupledBatch, *statistics: Tensor) -> dict[str, Metric]:
    """The metrics that a loss declares, computed with the arguments bound to the loss."""
    metrics = metrics_of(loss)
    return {} if metrics is None else metrics(batch, *statistics)


def advantage_metrics(advantages: Tensor, mask: Tensor) -> dict[str, float]:
    """Mean and population standard deviation over the steps of the mask. Both are [B, T]."""
    kept = advantages[mask].double()
    if not len(kept):
        return {}
    return {"actor/adv_mean": kept.mean().item(), "actor/adv_std": kept.std(correction=0).item()}


def reward_metrics(scores: Scores, rollout: Rollout) -> dict[str, float]:
    """Statistics of the samples with a reward, before any filter: [B] rows of all ranks."""
    metrics: dict[str, float] = {}
    for name, part in {"": scores.total, **scores.all_parts}.items():
        known = part[scores.scored & part.isfinite()].double()
        if len(known):
            prefix = f"reward/{name}/" if name else "reward/"
            metrics[f"{prefix}mean"] = known.mean().item()
            metrics[f"{prefix}std"] = known.std(correction=0).item()
    group = rollout.group
    spreads = [scores.total[(group == g) & scores.scored] for g in group.unique()]
    if any(len(spread) > 1 for spread in spreads):
        flat = [not len(x) or (x.max() - x.min()).item() < 1e-6 for x in spreads]
        metrics["reward/frac_zero_std"] = sum(flat) / len(flat)
    return metrics | _right_metrics(scores, rollout)


def _right_metrics(scores: Scores, rollout: Rollout) -> dict[str, float]:
    """Correctness metrics by the first reward: 1 or more is right, 0 or less is wrong.

    Shares of scored groups with all samples right, all wrong, and at least one right (pass@k for k
    samples per group); mean lengths in steps of right and of wrong samples.
    """
    first = next(iter(scores.all_parts.values()))
    known = scores.scored & first.isfinite()
    right, wrong = known & (first >= 1), known & (first <= 0)
    if not (right | wrong).any():
        return {}  # a graded reward, never right or wrong
    lengths = {"right": rollout.own_length[right], "wrong": rollout.own_length[wrong]}
    metrics = {
        f"response/length_{name}": length.double().mean().item()
        for name, length in lengths.items()
        if len(length)
    }
    ids, group = rollout.group.unique(return_inverse=True)
    samples, of_right, of_wrong = (
        torch.bincount(group[rows], minlength=len(ids)) for rows in (known, right, wrong)
    )
    size, heard = int(group.bincount().max()), samples > 0
    if size < 2 or not heard.any():
        return metrics
    shares = {
        "frac_all_right": of_right == samples,
        "frac_all_wrong": of_wrong == samples,
        f"pass@{size}": of_right > 0,
    }
    return metrics | {f"reward/{n}": x[heard].double().mean().item() for n, x in shares.items()}


def response_metrics(rollout: Rollout) -> dict[str, float]:
    """Lengths in steps, entropy of the sampling distribution in nats per step, and, if samples may
    be stale, their age."""
    length, truncated = rollout.own_length.double(), rollout.truncated
    metrics = {
        "response/length_mean": length.mean().item(),
        "response/length_min": length.min().item(),
        "response/length_max": length.max().item(),
        "response/truncated": truncated.double().mean().item(),
    }
    if not truncated.all():
        metrics["response/length_finished"] = length[~truncated].mean().item()
    if rollout.entropy is not None:
        known = rollout.mask
        if rollout.segment is not None:  # denoising steps have no entropy
            known = known & (rollout.segment == SEGMENTS.index(TEXT))
        if (entropy := rollout.entropy[known].double()).numel():
            metrics["actor/entropy"] = entropy.mean().item()
    return metrics if rollout.version_gap is None else metrics | staleness_metrics(rollout)


def staleness_metrics(rollout: Rollout) -> dict[str, float]:
    """Age of each sample's oldest step in iterations, and the share of trained steps per age."""
    oldest = torch.where(rollout.mask, rollout.version_gap, 0).amax(1).double()
    ages = rollout.version_gap[rollout.trained]
    shares = {
        f"staleness/share_{age}": (ages == age).double().mean().item()
        for age in ages.unique().tolist()
    }
    mean, most = oldest.mean().item(), oldest.max().item()
    return {"staleness/gap_mean": mean, "staleness/gap_max": most} | shares
