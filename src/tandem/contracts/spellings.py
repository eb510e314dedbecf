"""Forms of a function that a decorator accepts, distinguished by parameter names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from pkgutil import resolve_name

PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
KEYWORD = (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Spelling:
    """The positional parameters of a function, and what it returns."""

    takes: tuple[str, ...]
    gives: str
    adapter: str | None = None  # module:function that makes the form the group calls of it

    def __str__(self) -> str:
        return f"({', '.join(self.takes)}, *, numbers) -> {self.gives}"

    def fits(self, function: Callable) -> bool:
        """Whether a function takes these names by position, and beyond them numbers alone."""
        parameters = list(inspect.signature(function).parameters.values())
        first, others = parameters[: len(self.takes)], parameters[len(self.takes) :]
        return (
            tuple(parameter.name for parameter in first) == self.takes
            and all(parameter.kind not in KEYWORD for parameter in first)
            and all(_is_number(parameter) for parameter in others)
        )


@dataclass(frozen=True, slots=True)
class Foreign:
    """The form of such a function in another library, recognised by its parameter names."""

    takes: tuple[str, ...]
    adapter: str  # module:function that makes the form the group calls of it

    def fits(self, function: Callable) -> bool:
        return {*self.takes} <= {*inspect.signature(function).parameters}


ADVANTAGES = (
    Spelling(("scores", "rollout"), "advantages [B, T]"),
    Spelling(
        ("rewards", "mask"),
        "(advantages, returns), each [B, T]",
        "tandem.advantages.adapted:from_rewards",
    ),
)
LOSSES = (
    Spelling(("batch",), "the loss of each step [B, T]"),
    Spelling(
        ("old_logp", "logp", "advantages", "mask"),
        "(loss, metrics), a scalar and a mapping",
        "tandem.losses.adapted:from_scalar",
    ),
)


REWARDS = (
    Foreign(("solution_str", "ground_truth"), "tandem.rewards.adapted:from_verl"),
    Foreign(("completions",), "tandem.rewards.adapted:from_trl"),
)


def adapt(function: Callable, known: Sequence[Foreign]) -> Callable:
    """The function adapted from the form of another library; else itself."""
    adapter = next((one.adapter for one in known if one.fits(function)), None)
    return function if adapter is None else resolve_name(adapter)(function)


def adapt_to_group(function: Callable, accepted: Sequence[Spelling]) -> Callable:
    """The function adapted to the first spelling. Raises ValueError if it has none of them."""
    for spelling in accepted:
        if spelling.fits(function):
            if spelling.adapter is None:
                return function
            # Torch is imported only here: a module with such a function has imported it already.
            adapted = resolve_name(spelling.adapter)(function)
            others = list(inspect.signature(function).parameters.values())[len(spelling.takes) :]
            adapted.__signature__ = signature_of(accepted[0].takes, others)
            return adapted
    raise ValueError(
        f"{_format_signature(function)}: write it as {' or as '.join(map(str, accepted))}"
    )


def signature_of(takes: Sequence[str], numbers: Sequence[Parameter]) -> Signature:
    """The signature of an adapted function: positional arguments, and numbers by keyword."""
    first = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in takes]
    others = [
        one if one.kind in KEYWORD else one.replace(kind=Parameter.KEYWORD_ONLY) for one in numbers
    ]
    return Signature([*first, *others])


def method_of(owner: type, name: str) -> Callable | None:
    """The method of a class, `forward` for calls of a torch module; None: it has no such method."""
    names = (name, "forward") if name == "__call__" else (name,)
    found = (vars(kind)[one] for kind in owner.__mro__ for one in names if one in vars(kind))
    return next(found, None)


def refuse_uncallable(function: Callable, takes: Sequence[str], *, numbers: bool = True) -> None:
    """Raise ValueError for a function that cannot be called with these positional arguments.

    numbers: it may also need keywords, which a configuration binds to functions, not to methods.
    """
    parameters = inspect.signature(function).parameters.values()
    by_place = [one for one in parameters if one.kind in PLACE]
    unset = [one for one in parameters if one.default is Parameter.empty]
    least = sum(one.kind in PLACE for one in unset)
    rest = any(one.kind is Parameter.VAR_POSITIONAL for one in parameters)
    unbound = not numbers and any(one.kind is Parameter.KEYWORD_ONLY for one in unset)
    if unbound or least > len(takes) or (len(by_place) < len(takes) and not rest):
        listed = ", ".join(takes)
        written = f"({listed}, *, numbers)" if numbers else f"({listed}), numbers in __init__"
        raise ValueError(
            f"{_format_signature(function)}: it is called with {listed}; write it as {written}"
        )


def refuse_unbound(
    function: Callable, fact: str, takes: Sequence[str], numbers: Collection[str]
) -> None:
    """Raise ValueError for the function of a fact that cannot be called with these positional
    arguments and, by keyword, those of the `numbers` of its part that it names."""
    signature, listed = inspect.signature(function), ", ".join(takes)
    try:
        signature.bind(*takes, **{name: None for name in numbers if name in signature.parameters})
    except TypeError as error:
        raise ValueError(
            f"{_format_signature(function)}: {error}; {fact}= is called with {listed} and "
            f"numbers of the part that declares it, so write it as ({listed}, *, numbers)"
        ) from None


def _format_signature(function: Callable) -> str:
    return f"{function.__module__}.{function.__qualname__}{inspect.signature(function)}"


def _is_number(parameter: Parameter) -> bool:
    """Whether a parameter is a number, or the batch statistics of a loss."""
    if parameter.name == "statistics":
        return True
    has_default = parameter.default is not Parameter.empty
    return parameter.kind in KEYWORD or (
        has_default and parameter.kind is Parameter.POSITIONAL_OR_KEYWORD
    )
