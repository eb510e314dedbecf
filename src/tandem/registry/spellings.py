"""Which of the forms that a decorator accepts a function has, by the names of what it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import Parameter

KEYWORD = (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Spelling:
    """What a function is called with, by position, and what it gives."""

    takes: tuple[str, ...]
    gives: str

    def __str__(self) -> str:
        return f"({', '.join(self.takes)}, *, numbers) -> {self.gives}"

    def fits(self, function: Callable) -> bool:
        parameters = list(inspect.signature(function).parameters.values())
        first, others = parameters[: len(self.takes)], parameters[len(self.takes) :]
        return (
            tuple(parameter.name for parameter in first) == self.takes
            and all(parameter.kind not in KEYWORD for parameter in first)
            and all(_is_number(parameter, function) for parameter in others)
        )


def refuse_others(function: Callable, accepted: Sequence[Spelling]) -> Spelling:
    """The spelling of a function; raises if it has none of them."""
    for spelling in accepted:
        if spelling.fits(function):
            return spelling
    raise ValueError(
        f"{function.__module__}.{function.__qualname__}{inspect.signature(function)}: write it as "
        f"{' or as '.join(map(str, accepted))}"
    )


def _is_number(parameter: Parameter, function: Callable) -> bool:
    """A keyword, or the rows that a loss had surveyed."""
    if parameter.name == "surveyed" and "survey" in vars(function):
        return True
    has_default = parameter.default is not Parameter.empty
    return parameter.kind in KEYWORD or (
        has_default and parameter.kind is Parameter.POSITIONAL_OR_KEYWORD
    )
