"""Teacher values in a training forward: hidden states, from which logits are computed in chunks
along with the student's so that no [B, T, V] is held; or the reply of a server."""

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
    """Values of one teacher at some of the N steps of a pass."""

    steps: Tensor  # [n] int64 indices of the steps
    states: Tensor  # [n, ...] values of each, split along n

    def divergence(self, logits: Tensor, states: Tensor, temperature: Tensor) -> Tensor:
        """Divergence from the teacher at some of its states, [n] nats. logits: the student's,
        [n, V]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LikeliestTokens:
    """A teacher on a server: its most likely tokens at each step, at temperature 1."""

    steps: Tensor  # [n] int64
    states: Tensor  # [n, K, 2] ids, and their log-probabilities
    distance: StateDivergence

    def divergence(self, logits: Tensor, states: Tensor, temperature: Tensor) -> Tensor:
        """Divergence over those tokens, [n] nats. logits: the student's, [n, V]."""
        ids, teacher = states[..., 0].long(), states[..., 1].to(logits.dtype)
        return self.distance.among(logits.log_softmax(-1), ids, teacher)


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenStates:
    """A teacher in this process."""

    steps: Tensor  # [n] int64
    states: Tensor  # [n, H] its hidden states before each step
    head: Head
    distance: StateDivergence

    def divergence(self, logits: Tensor, states: Tensor, temperature: Tensor) -> Tensor:
        """Divergence from the teacher at some of its states, [n] nats. logits: the student's,
        [n, V]; both are divided by the temperature [n]."""
        with torch.no_grad():
            own = widen(self.head(states)) / temperature[:, None]
        shared = min(own.shape[-1], logits.shape[-1])  # padding rows of the head may differ
        student, teacher = (x[:, :shared].log_softmax(-1) for x in (logits, own))
        return self.distance(student, teacher)


def split_by_teacher(
    compared: Sequence[Compared], count: int, device: torch.device
) -> list[tuple[Tensor, Compared | None]]:
    """The steps of each teacher, [n] int64, and last those without a teacher."""
    parts: list[tuple[Tensor, Compared | None]] = [(one.steps, one) for one in compared]
    if compared and sum(len(one.steps) for one in compared) == count:
        return parts  # the usual case, known without a device synchronisation
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
    """Values of all steps, with the "divergence" from each step's teacher: [N]. Without a teacher
    it is 0, with a gradient of 0."""
    parts = split_by_teacher(compared, len(states), states.device)
    found = [read(states[steps], places=take(places, steps), beside=one) for steps, one in parts]
    for numbers in found:
        numbers.setdefault("divergence", 0 * numbers["logp"])
    order = torch.cat([steps for steps, _ in parts]).argsort()
    return {name: torch.cat([numbers[name] for numbers in found])[order] for name in found[0]}
