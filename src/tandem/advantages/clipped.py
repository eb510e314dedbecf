"""A clipped advantage. It wraps the one that `of` names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from tandem.contracts import Facts, Wrapper, facts_of
from tandem.types import Rollout, Scores


@dataclass(frozen=True)
class Clipped(Wrapper):
    """A clipped to [-bound, bound], so that one outlier does not dominate the update.

    `largest` rescales the result so that the bound becomes this; None: no rescaling.
    """

    of: Callable[[Scores, Rollout], Tensor]  # the advantage that is clipped
    bound: float = 5.0  # largest absolute value of an advantage
    largest: float | None = None  # value that the bound is rescaled to; null: no rescaling

    def __post_init__(self) -> None:
        for name, value in {"bound": self.bound, "largest": self.largest}.items():
            if value is not None and value <= 0:
                raise ValueError(
                    f"algorithm.advantage.{name}={value} leaves nothing; set it above 0"
                )

    def own_facts(self, declared: Facts) -> Facts:
        return replace(facts_of(self.of), option=declared.option, gives=declared.gives)

    def __call__(self, scores: Scores, rollout: Rollout) -> Tensor:
        kept = self.of(scores, rollout).clamp(-self.bound, self.bound)
        return kept if self.largest is None else kept * (self.largest / self.bound)
