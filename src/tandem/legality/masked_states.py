"""Numerical check of the states of a likelihood of masked texts, on a few rows without a model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tandem.contracts.inner_parts import ask_unwritten
from tandem.contracts.outputs import CLOSE, WIDE
from tandem.contracts.wrong_output import wrong_value
from tandem.policies.masked.records import HiddenRows, States
from tandem.types import take

POSITIONS, PROMPT = 8, 3  # of an answer and of the longest prompt; an arbitrary size


def try_states(likelihood: Callable, levels: Tensor) -> str | None:
    """The fault of a likelihood, in words. It is called anew for the live policy, the old one and
    the reference, and beside other rows each time: they must be asked at the same states.

    levels: of no use here. Raises WrongOutput for anything else than states.
    """
    rows = _rows()
    whole, again = (_ask(likelihood, rows) for _ in range(2))
    if _differ(whole, again):
        return "gives rows other values when called again; keep no state, and draw with tandem.rng"
    alone = [_ask(likelihood, take(rows, torch.tensor([row]))) for row in range(len(rows.key))]
    if _differ(whole, torch.cat(alone)):
        return "gives rows other values beside other rows; draw with tandem.rng from their keys"
    return None


def _rows() -> HiddenRows:
    """Answers of 8, 6 and 5 positions, and one of which nothing is scored, as in an idle pass."""
    position, column = torch.arange(POSITIONS), torch.arange(PROMPT + POSITIONS)
    scored, length = (torch.tensor(x)[:, None] for x in ([8, 6, 5, 0], [8, 6, 5, 7]))
    return HiddenRows(
        free=position < scored,
        void=position >= length,
        prompt=column < torch.tensor([[3], [1], [2], [3]]),
        when=(position + torch.arange(4)[:, None]) % POSITIONS,
        key=torch.arange(4),
        stratum=torch.tensor([5, 5, 6, 6]),
        place=torch.tensor([0.0, 0.5, 0.0, 0.5], dtype=torch.float64),
    )


def _ask(likelihood: Callable, rows: HiddenRows) -> Tensor:
    """The values of rows, [B, L], by stand-ins for log-probabilities that tell states apart."""
    states = ask_unwritten(likelihood, rows)
    _refuse_form(likelihood, states, rows)
    shown = torch.cat([states.hidden, torch.zeros_like(rows.prompt)[states.row]], 1)
    if states.prompt is not None:
        shown[:, POSITIONS:] = states.prompt
    code = shown.double() @ torch.arange(1.0, shown.shape[1] + 1).double().sin()
    logp = -(torch.arange(POSITIONS) + 10 + code[:, None])
    return torch.where(rows.free, states.values(logp, len(rows.key)), 0)


def _refuse_form(likelihood: Callable, states: object, rows: HiddenRows) -> None:
    """Raise WrongOutput for anything else than finite states of these rows."""
    if not isinstance(states, States):
        raise wrong_value(likelihood, states, "States, of tandem.policies.masked.records")
    count = len(states.row) if isinstance(states.row, Tensor) and states.row.ndim else 0
    answer, prompt = [count, rows.free.shape[1]], [count, rows.prompt.shape[1]]
    forms = {
        "row": ((torch.int64,), "an int64 tensor [N]", [count]),
        "hidden": ((torch.bool,), "a bool tensor [N, L]", answer),
        "weight": (WIDE, "a float64 tensor [N, L]", answer),
        "prompt": ((torch.bool,), "None, or a bool tensor [N, S]", prompt),
    }
    for name, (dtypes, want, shape) in forms.items():
        value = getattr(states, name)
        if name == "prompt" and value is None:
            continue
        if not isinstance(value, Tensor) or value.dtype not in dtypes or [*value.shape] != shape:
            raise wrong_value(likelihood, value, f"States.{name} as {want}, here {shape}")
    if count and not 0 <= states.row.min() <= states.row.max() < len(rows.key):
        raise wrong_value(
            likelihood, states.row, f"in States.row indices of the rows, 0 to {len(rows.key) - 1}"
        )
    if not states.weight.isfinite().all():
        want = "finite States.weight, with none for a row of which nothing is free"
        raise wrong_value(likelihood, states.weight, want)
    if not isinstance(states.count, int) or states.count < 1:
        raise wrong_value(likelihood, states.count, "in States.count states of each row, from 1")


def _differ(values: Tensor, others: Tensor) -> bool:
    return bool((values - others).abs().max() > CLOSE * values.abs().max())
