"""The teacher's part of a training forward: its hidden states, from which logits are made chunk by
chunk beside the student's, so that neither [B, T, V] is ever held; or what a server said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tandem.losses.divergence import StateDivergence
from tandem.types import Record, take, widen

Head = Callable[[Tensor], Tensor]  # hidden states [n, H] -> logits [n, V]


class Compared(Protocol):
    """What one teacher says at some of the N steps of a pass."""

    steps: Tensor  # [n] int64, which of them
    states: Tensor  # [n, ...] what it has of each, to be cut along n

    def divergence(self, logits: Tensor, states: Tensor, temperature: Tensor) -> Tensor:
        """From the teacher at some of its states, [n] nats. logits: the student's, [n, V]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LikeliestTokens:
    """Of a teacher on a server: its likeliest tokens at each step, at temperature 1."""

    steps: Tensor  # [n] int64
    states: Tensor  # [n, K, 2] ids, and their log-probabilities
    distance: StateDivergence

    def divergence(self, logits: Tensor, states: Tensor, temperature: Tensor) -> Tensor:
        """Over those tokens, [n] nats. logits: the student's, [n, V]."""
        ids, teacher = states[..., 0].long(), states[..., 1].to(logits.dtype)
        return self.distance.among(logits.log_softmax(-1), ids, teacher)


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenStates:
    """Of a teacher in this process."""

    steps: Tensor  # [n] int64
    states: Tensor  # [n, H] its hidden states before each
    head: Head
    distance: StateDivergence

    def divergence(self, logits: Tensor, states: Tensor, temperature: Tensor) -> Tensor:
        """From the teacher at some of its states, [n] nats. logits: the student's, [n, V]; both are
        divided by the temperature [n]."""
        with torch.no_grad():
            own = widen(self.head(states)) / temperature[:, None]
        shared = min(own.shape[-1], logits.shape[-1])  # rows beyond the tokenizer's may differ
        student, teacher = (x[:, :shared].log_softmax(-1) for x in (logits, own))
        return self.distance(student, teacher)


def parted(
    compared: Sequence[Compared], count: int, device: torch.device
) -> list[tuple[Tensor, Compared | None]]:
    """The steps of each teacher, [n] int64, and last those that no teacher judges."""
    parts: list[tuple[Tensor, Compared | None]] = [(one.steps, one) for one in compared]
    if compared and sum(len(one.steps) for one in compared) == count:
        return parts  # as nearly always, and known without a wait for the device
    rest = torch.ones(count, dtype=torch.bool, device=device)
    for one in compared:
        rest[one.steps] = False
    return [*parts, (rest.nonzero()[:, 0], None)]


def by_teacher(
    read: Callable[..., dict[str, Tensor]],
    states: Tensor,
    places: Record,
    compared: Sequence[Compared],
) -> dict[str, Tensor]:
    """What is read of all steps, those of each teacher with the "divergence" from it: [N]. It is 0
    where no teacher judges, with a gradient of 0."""
    parts = parted(compared, len(states), states.device)
    found = [read(states[steps], places=take(places, steps), beside=one) for steps, one in parts]
    for numbers in found:
        numbers.setdefault("divergence", 0 * numbers["logp"])
    order = torch.cat([steps for steps, _ in parts]).argsort()
    return {name: torch.cat([numbers[name] for numbers in found])[order] for name in found[0]}
