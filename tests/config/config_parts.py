"""A plugin of the tests: targets of every kind that a configuration may name."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from tandem.contracts import regular_expression

if TYPE_CHECKING:
    from nowhere import Unknown

borrowed = os.system
hidden_open = partial(open)
instance = Path("canary")


@dataclass(frozen=True, kw_only=True)
class Size:
    rows: int
    columns: int = 1


class Shape(Protocol):
    def area(self) -> int: ...


class Square:
    def __init__(self, side: float = 1.0) -> None:
        self.side = side


class Scale:
    def __init__(self, *, by: float) -> None:
        self.by = by

    def __call__(self, value: float) -> float:
        return self.by * value


doubled = Scale(by=2.0)


def everything(
    *,
    whole: int = 0,
    real: float = 0.0,
    flag: bool = False,
    word: str = "",
    maybe: int | None = None,
    mode: Literal["fast", "exact"] = "fast",
    numbers: Sequence[float] = (),
    pair: tuple[float, float] = (0.0, 0.0),
    words: tuple[str, ...] = (),
    table: Mapping[str, int] | None = None,
    folder: Path | None = None,
    pattern: Annotated[str, regular_expression] | None = None,
    size: Size | None = None,
    square: Square | None = None,
    shape: "Shape | None" = None,
    call: Callable[[float], float] | None = None,
    anything: Any = None,
    unknown: "Unknown | None" = None,
) -> dict[str, Any]:
    return dict(locals())


def weigh(values: list[float], *, factor: float, power: int = 1) -> list[float]:
    return [factor * value**power for value in values]


def draw(prompts: list[str], *, seed: int, floor: float) -> list[str]:
    return prompts[seed:]


def a_square(*, side: float) -> Square:
    return Square(side)


def a_size() -> Size:
    return Size(rows=2)


def _private() -> None: ...
