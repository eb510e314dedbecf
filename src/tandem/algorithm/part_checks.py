"""Checks of losses, corrections, metrics and batch statistics, made on the rows of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tandem.contracts import callable_name, facts_of, is_foreign, iterate_innermost
from tandem.contracts.inner_parts import ask_unwritten
from tandem.contracts.outputs import CLOSE, CORRECTION, LOSS, Output, find_wider
from tandem.contracts.parts import place_of
from tandem.contracts.stateful import has_state
from tandem.contracts.wrong_output import WrongOutput, wrong_value
from tandem.metrics import Metric
from tandem.types import (
    CoupledBatch,
    DecoupledBatch,
    MatchingBatch,
    Rollout,
    Summary,
    map_fields,
    pad_steps,
    take,
)

log = logging.getLogger(__name__)
Record = CoupledBatch | DecoupledBatch | MatchingBatch


def as_if_moved(batch: Record) -> Record:
    """The same rows as if the policies that they are compared with had other weights, each row by
    another amount, and age: before the first update they agree, and every ratio is 1."""
    mask, names = batch.mask, [x for x in batch.compared_with if getattr(batch, x) is not None]
    rows = torch.arange(len(mask), device=mask.device)[:, None]
    # At most 30 nats over a row: the product of its ratios stays finite. No row stays where it is.
    gap = ((2 * rows + 0.5) / len(mask) - 1) * min(0.25, 10 / mask.shape[1]) * mask
    own = batch.evidence.detach()
    moved = {batch.carries: move_logp(own, 0 * gap) if own.ndim == 2 else own}
    for number, name in enumerate(names, start=1):
        x, far = getattr(batch, name), number * gap
        moved[name] = move_logp(x, far) if x.ndim == 2 else x * (1 + far[..., None])
    if batch.version_gap is not None:  # 0 or 1: a table of weights by age may end there
        moved["version_gap"] = (rows % 2 * mask).to(batch.version_gap.dtype)
    return replace(batch, **moved)


def move_logp(x: Tensor, far: Tensor) -> Tensor:
    """x - far, [B, T]; the logarithm of a probability stays one. Multiples of 2^-10, of which sums
    are exact in any order: a difference of two sums is no rounding."""
    moved = torch.where(x < 0, (x - far).minimum(x / 2), x - far)
    return (moved * 2**10).floor() / 2**10


def warn_of_nameless_states(advantage: Callable, rollout: Rollout) -> None:
    """Warn of moves that an advantage would compare by their state, of which none has a name."""
    if "state" in facts_of(advantage).reads and not rollout.state[rollout.mask].any():
        log.warning(
            "%s compares moves that begin in the same state, and no move of this iteration begins "
            "in a state with a name: let the environment name them by Said.state, or set "
            "algorithm=grpo",
            callable_name(advantage),
        )


def is_unproven(loss: Callable) -> bool:
    """Whether a loss from outside the package declares `zero_at_zero_advantage`; those of the
    package are tested. A loss with state must not be called twice."""
    outside = any(is_foreign(part) for _, part in iterate_innermost(loss, ""))
    return facts_of(loss).zero_at_zero_advantage and outside and not has_state(loss)


def judge_alone(
    loss: Callable, corrections: Sequence[Callable], batch: Record, whole: Tensor, *, padded: bool
) -> bool:
    """Raise WrongOutput for a loss or a correction whose values depend on rows beside them, or on
    the width of the batch if a row is `padded`.

    whole: [B, T], the values of the loss. False: all rows are of one group that the loss compares,
    so there was nothing to split.
    """
    moved = as_if_moved(batch)
    compared = refuse_dependence(LOSS, loss, batch, whole)
    for kind, part in [(LOSS, loss), *((CORRECTION, x) for x in corrections)]:
        refuse_dependence(kind, part, moved)
        if padded:
            refuse_width(kind, part, moved)
    return compared


@torch.no_grad()
def refuse_dependence(
    kind: Output, part: Callable, batch: Record, whole: Tensor | None = None
) -> bool:
    """Raise for a part whose values depend on the rows beside them.

    whole: [B, T], its values for all rows, if known. The rows are split by these values, so that
    the means of both halves differ; groups stay whole if a loss declares to compare them. False:
    all rows are of one such group, so there was nothing to split.
    """
    own, mask = facts_of(part), batch.mask
    if looks_beside(part):
        return True
    whole = torch.where(mask, part(batch) if whole is None else whole, 0)
    size = whole.sum(1)
    if own.whole_groups:
        group = batch.group.unique(return_inverse=True)[1]
        total = size.new_zeros(int(group.max()) + 1).index_add_(0, group, size)
        rank = total.argsort(stable=True).argsort()[group]
        low = rank < len(total) // 2
    else:
        low = size.argsort(stable=True).argsort() < len(size) // 2
    if splits := bool(low.any() and not low.all()):
        halves = [half.nonzero()[:, 0] for half in (low, ~low)]
        parts = torch.cat([part(take(batch, rows)) for rows in halves])
        again = torch.where(mask, parts[torch.cat(halves).argsort()], 0)
        when = (
            "an update is cut in two, by up to {gap:.2g}: it takes a statistic of the rows beside "
            f"them, which depends on max_tokens_per_microbatch; {kind.instead}"
        )
        refuse_gap(kind, part, batch, whole, again, when)
    return splits


@torch.no_grad()
def refuse_width(kind: Output, part: Callable, batch: Record) -> None:
    """Raise for a part whose values depend on the length of the longest row: they are compared with
    those beside one of twice the width."""
    if looks_beside(part):
        return
    mask, width = batch.mask, batch.mask.shape[1]
    whole = torch.where(mask, part(batch), 0)
    wider = part(map_fields(batch, lambda x: x if x.ndim == 1 else pad_steps(x, 2 * width)))
    again = torch.where(mask, wider[:, :width], 0)
    when = (
        "a longer row stands beside them, by up to {gap:.2g}: it reads the columns behind a row, "
        "which max_tokens_per_microbatch decides; divide a sum by batch.mask.sum(1), not by its "
        "width, as .mean(1) does"
    )
    refuse_gap(kind, part, batch, whole, again, when)


def looks_beside(part: Callable) -> bool:
    """Whether a part declares that it reads other rows, or must not be called twice."""
    own = facts_of(part)
    return own.batch_statistics is not None or own.averages or has_state(part)


def refuse_gap(
    kind: Output, part: Callable, batch: Record, whole: Tensor, again: Tensor, when: str
) -> None:
    """Raise WrongOutput where the values of a part for a batch, and those for it in another form,
    differ: [B, T]. `when`: the end of the message, with a place for the `gap`."""
    gap = (again - whole).abs().max()
    if gap > CLOSE * whole.abs().max():
        kind.refuse_unlike(part, whole, torch.where(batch.mask, part(batch), 0))
        raise kind.unlike(part, when.format(gap=gap))


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


def refuse_other_records(logged: Mapping[str, object], known: Mapping[str, Metric]) -> None:
    """Raise WrongOutput for a logged value that is no record of `tandem.metrics`, or another kind
    of record than the `known` one of its name, with which it cannot be joined."""
    for name, value in logged.items():
        kind, before = type(value), type(known.get(name, value))
        if not isinstance(value, Metric):
            raise WrongOutput(
                f"source.log: {name} is a {kind.__name__}; log a record of tandem.metrics, such as "
                "masked_mean(x, rollout.mask)"
            )
        if (fault := find_wider(value)) is not None:
            raise WrongOutput(f"source.log: {name} is {fault}; log scalars, such as x.max()")
        if kind is not before:
            raise WrongOutput(
                f"source.log: {name} is a {before.__name__}, and then a {kind.__name__}; log one "
                "kind under one name"
            )


def statistics_by(find: Callable, rows: Record | Summary) -> Tensor:
    """The statistics that a function finds in all rows of an update: [B, T], or [B, T, ...].

    Raises WrongOutput for anything else, and for a function that writes on the rows.
    """
    found = ask_unwritten(find, rows)
    if not isinstance(found, Tensor) or found.shape[:2] != rows.mask.shape:
        raise wrong_value(find, found, f"[B, T], here {[*rows.mask.shape]}")
    return found
