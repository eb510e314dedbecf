"""An advantage kept within a bound. It wraps the one that `of` names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from tandem.declarations import needs_of
from tandem.types import Rollout, Scores


@dataclass(frozen=True)
class Clipped:
    """A between -bound and bound: one sample that stands out does not make the whole update."""

    of: Callable[[Scores, Rollout], Tensor]
    bound: float = 5.0

    def __post_init__(self) -> None:
        if self.bound <= 0:
            raise ValueError(
                f"algorithm.advantage.bound={self.bound} leaves nothing; set it above 0"
            )

    @property
    def needs(self) -> frozenset[str]:
        return needs_of(self.of)

    def __call__(self, scores: Scores, rollout: Rollout) -> Tensor:
        return self.of(scores, rollout).clamp(-self.bound, self.bound)
