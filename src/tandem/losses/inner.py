"""A loss inside another one, and what it must not ask for there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tandem.declarations import compares_rows, needs_of, survey_of, unbound, vanishes
from tandem.types import CoupledBatch


@dataclass(frozen=True, kw_only=True)
class Outer:
    """A loss that overrules another one on some steps; elsewhere it is that one."""

    says: ClassVar[str]  # what it is called where it refuses something
    reads: ClassVar[frozenset[str]]  # beyond what the inner loss reads

    loss: Callable[[CoupledBatch], Tensor]

    def __post_init__(self) -> None:
        if survey_of(self.loss) is not None:  # it would have to see the whole update
            raise ValueError(
                f"{self.says} calls the loss in it with one batch, but "
                f"{unbound(self.loss)[0].__name__} looks at a whole update first; set "
                "algorithm.loss.loss to a loss that judges each row alone, such as ppo"
            )

    @property
    def needs(self) -> frozenset[str]:
        return needs_of(self.loss) | self.reads

    @property
    def vanishes(self) -> bool:
        return vanishes(self.loss)

    @property
    def whole_groups(self) -> bool:
        return compares_rows(self.loss)
