"""The adapter from a loss that averages over the update to a loss per step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tandem.contracts import declare, facts_of, unwrap_partial
from tandem.contracts.wrong_output import WrongOutput
from tandem.metrics import Metric, Sum
from tandem.types import CoupledBatch

Reducing = Callable[..., tuple[Tensor, Mapping[str, Any]]]
Loss = Callable[..., Tensor]


def from_scalar(function: Reducing) -> Loss:
    """`(old_logp, logp, advantages, mask, *, numbers) -> (loss, metrics)` as a loss per step.

    Every step gets the same number, which weights that add up to 1 turn back into the mean: the
    rows must be a whole update, as `refuse_part` checks. Metrics are means over updates, named
    actor/NAME unless they contain a slash. The numbers are the function's own keywords.
    """

    @functools.wraps(function)
    def loss(batch: CoupledBatch, **numbers: object) -> Tensor:
        if not batch.mask.any():  # an empty mean is NaN
            return 0 * batch.logp
        return _ask(function, batch, numbers)[0].expand(batch.mask.shape)

    def metrics(batch: CoupledBatch, **numbers: object) -> dict[str, Metric]:
        if not batch.mask.any():
            return {}
        named = _ask(function, batch, numbers)[1]
        return {
            name if "/" in name else f"actor/{name}": _as_metric(function, name, value)
            for name, value in named.items()
        }

    return declare(reads={"old_logp"}, averages=True, metrics=metrics)(loss)


def refuse_part(loss: Callable, weights: Tensor) -> None:
    """Raise if the rows of a loss that averages itself are not a whole update, by their weights.

    Weights of a whole update add up to 1; if all are 0, the rows are idle. `weights`: [B, T].
    """
    if not facts_of(loss).averages or not weights.any():
        return
    share = float(weights.sum())
    if abs(share - 1) > 1e-3:
        cut = "max_tokens_per_microbatch, micro_batch_size and trainer.devices cut it"
        raise WrongOutput(by_steps(loss, f"one forward pass has {share:.0%} of its weight ({cut})"))


def by_steps(loss: Callable, reason: str) -> str:
    """The error line: why such a loss cannot be used here, and what to write instead."""
    name = unwrap_partial(loss)[0].__name__
    return (
        f"{name} averages over an update itself, but {reason}; write it as `def {name}(batch, *, "
        "numbers) -> Tensor`, the loss of each step [B, T] from batch.logp, batch.old_logp and "
        "batch.advantages, and any cut adds up"
    )


def _ask(
    function: Reducing, batch: CoupledBatch, numbers: Mapping[str, object]
) -> tuple[Tensor, Mapping[str, Any]]:
    answer = function(batch.old_logp, batch.logp, batch.advantages, batch.mask, **numbers)
    match answer:
        case (Tensor(ndim=0) as loss, Mapping() as metrics):
            return loss, metrics
    raise WrongOutput(
        f"{function.__name__}(old_logp, logp, advantages, mask) gives (loss, metrics), a tensor of "
        f"no dimensions and a mapping, but it gave {_describe(answer)}"
    )


def _as_metric(function: Reducing, name: str, value: object) -> Metric:
    number = torch.as_tensor(value).detach()
    if number.numel() != 1:
        raise WrongOutput(
            f"{function.__name__}: its metric {name} is {_describe(value)}, not a number"
        )
    return Sum(number.reshape(()), torch.ones((), device=number.device))


def _describe(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(_describe(item) for item in value)})"
    return f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
