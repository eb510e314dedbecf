"""Parts of a configuration: their facts and numbers, through any number of `functools.partial`s."""

from __future__ import annotations

import functools
import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from tandem.contracts.admitted import refuse_missing_numbers
from tandem.contracts.bounds import values_of
from tandem.contracts.facts import NOTHING, Facts

PACKAGE = Path(__file__).parents[1]


class Wrapper(ABC):
    """A component made of others of its kind, whose facts depend on theirs."""

    of: Any  # the only one, unless `components` says otherwise

    @abstractmethod
    def own_facts(self, declared: Facts) -> Facts:
        """The facts of this object; `declared`: those of its class."""

    def components(self) -> Mapping[str, Callable]:
        """Key below its own -> the component that it calls."""
        return {"of": self.of}


class Switch:
    """A part that a coefficient of 0 disables: its components are not called then."""

    coef: float

    @property
    def is_off(self) -> bool:
        """Whether the coefficient is 0 and stays 0."""
        return self.coef == 0


def declare(**facts: Any) -> Callable:
    """A decorator that declares facts of a function or class without making it an option."""

    def decorate(component: Callable) -> Callable:
        refuse_missing_numbers(component, **facts)
        component.facts = facts_of(component).with_declared(facts)
        return component

    return decorate


def facts_of(component: Callable | None) -> Facts:
    """The facts that a component declared, through any number of `functools.partial`s."""
    owner, _ = unwrap_partial(component)
    declared = getattr(owner, "facts", NOTHING)
    return owner.own_facts(declared) if isinstance(owner, Wrapper) else declared


def name_of(component: Callable) -> str:
    """The option of a component, else the name of its function or class."""
    return facts_of(component).option or callable_name(component)


def callable_name(component: Callable) -> str:
    """The name of the function or class of a component."""
    owner, _ = unwrap_partial(component)
    return getattr(owner, "__name__", type(owner).__name__)


def iterate_innermost(
    component: Callable, where: str, *, wrappers: bool = False
) -> Iterator[tuple[str, Callable]]:
    """The innermost components, each with its key; `wrappers`: also what they are wrapped in."""
    owner, _ = unwrap_partial(component)
    inside = owner.components() if isinstance(owner, Wrapper) else None
    if wrappers or inside is None:
        yield where, component
    for key, inner in (inside or {}).items():
        yield from iterate_innermost(inner, f"{where}.{key}", wrappers=wrappers)


def batch_statistics_of(component: Callable) -> Callable | None:
    """The batch statistics of a loss, bound to numbers of the loss; None if it needs none."""
    return bind_declared(component, facts_of(component).batch_statistics)


def metrics_of(component: Callable) -> Callable | None:
    """The metrics that a component declared, bound to its numbers; None: it has none."""
    return bind_declared(component, facts_of(component).metrics)


def summary_of(component: Callable) -> Callable | None:
    """The summary of each row that statistics see, with numbers of the loss; None: the row."""
    return bind_declared(component, facts_of(component).summary)


def bind_declared(component: Callable, function: Callable | None) -> Callable | None:
    """A function that a component declared, bound to the numbers of the component that are keywords
    of that function; None stays None."""
    if function is None:
        return None
    return functools.partial(function, **select_numbers(function, numbers_of(component)))


def select_numbers(function: Callable, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers that a function takes; one with `**numbers` takes them all."""
    parameters = inspect.signature(function).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return {name: x for name, x in numbers.items() if takes_all or name in parameters}


def numbers_of(component: Callable | None) -> dict[str, Any]:
    """The keywords of a component, bound values over defaults; of a record, its fields."""
    owner, bound = unwrap_partial(component)
    if is_dataclass(owner) and not isinstance(owner, type):
        return fields_of(owner)
    return defaults_of(owner) | bound


def fields_of(record: Any) -> dict[str, Any]:
    """The fields of a dataclass by name; records in it stay records."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def parts_of(component: Any, segment: str | None = None) -> Iterator[Callable]:
    """All functions that a component calls: its own, and those in its numbers. `segment`: only
    those for the steps of this segment; None: for all."""
    return (unwrap_partial(part)[0] for part in bound_parts_of(component, segment))


def bound_parts_of(component: Any, segment: str | None = None) -> Iterator[Any]:
    """The parts of `parts_of`, with the numbers that are bound to them."""
    inside: Iterable[Any] = ()
    match component:
        case Switch() if component.is_off:
            return
        case Mapping():
            inside = component.values()
        case _ if callable(component) or is_dataclass(component):
            yield component
            others = {*facts_of(component).segments} - {segment} if segment else ()
            numbers = numbers_of(component)
            inside = [item for name, item in numbers.items() if name not in others]
    for item in inside:
        yield from bound_parts_of(item, segment)


def rewards_read_by(component: Any) -> set[str]:
    """The names of the rewards that a component, or a part in its numbers, reads."""
    return {name for part in bound_parts_of(component) for _, name in named_rewards_of(part)}


def named_rewards_of(part: Callable) -> Iterator[tuple[str, str]]:
    """(number, reward) of the rewards that a part names in its own numbers."""
    for number in facts_of(part).named_rewards:
        for name in values_of(numbers_of(part)[number] or ()):
            yield number, name


def defaults_of(function: Callable | None) -> dict[str, Any]:
    """The keyword-only numbers of a function that have a default."""
    return getattr(function, "__kwdefaults__", None) or {}


def is_foreign(component: Callable) -> bool:
    """Whether a component, inside any partial, is from outside the package."""
    return is_outside(source_of(component))


def source_of(component: Callable) -> Callable:
    """The function or class that a component was written as: of functions that wrap one another the
    innermost from outside the package, else the innermost."""
    wrapper, kinds = component, []
    while wrapper is not None:
        wrapper, _ = unwrap_partial(wrapper)
        kinds.insert(0, kind_of(wrapper))
        held = wrapper.__func__ if inspect.ismethod(wrapper) else wrapper
        wrapper = inspect.getattr_static(held, "__wrapped__", None)
    return next(filter(is_outside, kinds), kinds[0])


def locate_source(component: Callable) -> tuple[str | None, int]:
    """File and line of a component. Raises TypeError or OSError where there is no file."""
    source = source_of(component)  # `inspect` would go on to what a function wraps
    written = source.__code__ if inspect.isfunction(source) else source
    return inspect.getsourcefile(written), inspect.getsourcelines(written)[1]


def module_of(component: Callable) -> str:
    """The name of the module that a component was written in."""
    source = source_of(component)
    written = source.__globals__.get("__name__") if inspect.isfunction(source) else None
    return written or source.__module__


def kind_of(part: Callable) -> Callable:
    """The function, or the class, that a part is or is made of; of a bound method, its function."""
    owner, _ = unwrap_partial(part)
    if inspect.ismethod(owner):
        return owner.__func__
    return owner if inspect.isfunction(owner) or inspect.isclass(owner) else type(owner)


def is_outside(kind: Callable) -> bool:
    """Whether a function is from outside the package, by its file: `wraps` copies the module."""
    if inspect.isfunction(kind):
        return not Path(kind.__code__.co_filename).is_relative_to(PACKAGE)
    return not f"{kind.__module__}.".startswith("tandem.")


def unwrap_partial(component: Callable | None) -> tuple[Callable | None, dict[str, Any]]:
    """The function inside any number of `functools.partial`s, and the numbers bound to it."""
    numbers: dict[str, Any] = {}
    while isinstance(component, functools.partial):
        numbers = {**component.keywords, **numbers}
        component = component.func
    return component, numbers


def need_extra(part: str, extra: str) -> str:
    """The message of a part whose package, an extra of pyproject.toml, is missing."""
    return f'{part} needs a package: pip install -e ".[{extra}]"'


def place_of(part: Callable) -> str:
    """FILE:LINE where the component is written; its name where there is no file."""
    try:
        file, line = locate_source(part)
        return f"{relative_path(file)}:{line}"
    except (TypeError, OSError):
        return callable_name(part)


def relative_path(file: str) -> str:
    """A path as seen from the working directory."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, FileNotFoundError):  # it is elsewhere, or a reward deleted that directory
        return file


def expand_home(path: str | Path) -> Path:
    """The path with `~` expanded. The home of an unknown user stays as it is: a folder that is not
    there, where `Path.expanduser` raises RuntimeError."""
    return Path(os.path.expanduser(path))
