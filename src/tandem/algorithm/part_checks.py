"""Checks of losses, corrections, metrics and batch statistics, made on the rows of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from tandem.contracts import callable_name, facts_of, is_foreign, iterate_innermost
from tandem.contracts.inner_parts import ask_unwritten
from tandem.contracts.outputs import WrongOutput, add_metrics, wrong_value
from tandem.contracts.parts import place_of
from tandem.contracts.stateful import has_state
from tandem.experience import Experience, statistics_of
from tandem.metrics import Metric
from tandem.types import CoupledBatch, DecoupledBatch, MatchingBatch, Summary

Record = CoupledBatch | DecoupledBatch | MatchingBatch


def as_if_stale(batch: Record) -> Record:
    """Rows as if sampled by other weights: for fresh rows every correction is 1."""
    if batch.behaviour_logp is None:
        return batch
    gap = torch.linspace(-0.5, 0.5, len(batch.mask), device=batch.mask.device)[:, None]
    return replace(batch, behaviour_logp=batch.behaviour_logp + gap * batch.mask)


def is_unproven(loss: Callable) -> bool:
    """Whether a loss from outside the package declares `zero_at_zero_advantage`; those of the
    package are tested. A loss with state must not be called twice."""
    outside = any(is_foreign(part) for _, part in iterate_innermost(loss, ""))
    return facts_of(loss).zero_at_zero_advantage and outside and not has_state(loss)


@torch.enable_grad()
def refuse_pull(loss: Callable, batch: Record, *statistics: Tensor) -> None:
    """Raise WrongOutput for a loss whose value or gradient is not 0 where all advantages are: such
    rows are left out of updates, because it declares `zero_at_zero_advantage`.

    The gradient is that to the log-probabilities, or to what else the record carries.
    """
    leaf = batch.evidence.detach().requires_grad_()
    quiet = torch.zeros_like(batch.advantages)
    value = loss(replace(batch, advantages=quiet, **{batch.carries: leaf}), *statistics)
    value = torch.where(batch.mask, value, 0)
    pull = None
    if value.requires_grad:
        (pull,) = torch.autograd.grad(value.sum(), leaf, allow_unused=True)
    found = {"value": value.detach(), "gradient": leaf.new_zeros(1) if pull is None else pull}
    for what, numbers in found.items():
        if numbers.any():
            size = f"{numbers.abs().max():.2g}"
            raise WrongOutput(
                f"loss {callable_name(loss)} at {place_of(loss)} declares "
                f"zero_at_zero_advantage=True, but its {what} is {size} where all advantages "
                "are 0, and such rows are left out; remove the flag"
            )


def measure_losses(
    metrics: dict[str, Metric],
    losses: Mapping[str, Callable],
    measures: Mapping[str, Callable | None],
    records: Mapping[str, Record],
    rows: Experience,
) -> dict[str, Metric]:
    """Add what the losses of all terms measure on the record of each. Of two terms with the same
    loss, the second adds its own name to the metrics."""
    asked: list[Callable] = []
    for term, record in records.items():
        if (measure := measures[term]) is not None:
            found = measure(record, *statistics_of(rows, term))
            suffix = f".{term}" if measure.func in asked else ""
            add_metrics(metrics, found, losses[term], suffix=suffix)
            asked.append(measure.func)
    return metrics


def refuse_other_metrics(measure: Callable | None, *records: object) -> None:
    """Raise WrongOutput if the metrics of a part for these records are no records of
    `tandem.metrics`; None: it declares none."""
    found = {} if measure is None else measure(*records)
    if not isinstance(found, Mapping):
        raise wrong_value(measure, found, "a dict of names to records of tandem.metrics")
    for name, value in found.items():
        if not isinstance(value, Metric):
            want = f"{name} as a record of tandem.metrics, such as masked_mean(x, batch.mask)"
            raise wrong_value(measure, value, want)


def statistics_by(find: Callable, rows: Record | Summary) -> Tensor:
    """The statistics that a function finds in all rows of an update: [B, T], or [B, T, ...].

    Raises WrongOutput for anything else, and for a function that writes on the rows.
    """
    found = ask_unwritten(find, rows)
    if not isinstance(found, Tensor) or found.shape[:2] != rows.mask.shape:
        raise wrong_value(find, found, f"[B, T], here {[*rows.mask.shape]}")
    return found
