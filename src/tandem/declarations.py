"""What a component declares beside its signature, and how others read it.

A declaration stands above the function and travels with it, through any number of
`functools.partial`s, so the loop and the configuration ask the part itself.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

from torch import Tensor

DOMAINS = ("tokens", "steps", "pictures")  # what a policy can be trained on; see `refused_on`


def needs(*names: str, vanishes: bool = False, whole_groups: bool = False) -> Callable:
    """Declare what a function reads beyond the fields that are always there.

    `vanishes`: the value of a row is 0, and so is its gradient, where its advantages are all 0.
    `whole_groups`: it compares the rows of a group, so no cut may part them.
    """

    def declare(function: Callable) -> Callable:
        function.needs = frozenset(names)
        function.vanishes = vanishes
        function.whole_groups = whole_groups
        return function

    return declare


def refused_on(**reasons: str) -> Callable:
    """Declare in which domains a function makes no sense: domain -> a clause that says why.

    The domains are what a policy can be trained on: "tokens"; "steps", which are Gaussian; and
    "pictures", whose log-probability is a regression error at fresh noise. The clause ends in what
    to set instead, where there is such a thing. What stands above another declaration beats it.
    """
    assert reasons.keys() <= set(DOMAINS)

    def declare(function: Callable) -> Callable:
        function.refused = {**refused_on_of(function), **reasons}
        return function

    return declare


def on_errors(function: Callable) -> Callable:
    """Declare that a loss takes a `DecoupledBatch`: velocity errors, and no log-probability."""
    function.on_errors = True
    return refused_on(
        tokens="it compares velocities, and tokens have none; set model=tiny_flow, or another flow",
        steps="it reads velocity errors at fresh noise, not the steps that were sampled; set "
        "algorithm.evidence=elbo",
    )(function)


def reads(outputs: Literal["texts", "pictures"]) -> Callable:
    """Declare what a reward judges; one that says nothing is asked about either."""

    def declare(function: Callable) -> Callable:
        function.reads = outputs
        return function

    return declare


def surveyed_by(
    survey: Callable[..., Tensor], *, of: Callable[..., Tensor] | None = None
) -> Callable:
    """Declare `survey(batch, *, numbers)` -> [B, T], which a loss must have seen before any cut.

    It is called once per update, without gradient, on the rows of all micro-batches and ranks; the
    loss is then called as loss(batch, surveyed, *, numbers) with its own rows of the answer. The
    survey gets those numbers of the loss that are keywords of its own.

    `of(batch, *, numbers)` -> [B, T] says something of each row by itself, and the survey is then
    called as survey(Summary, *, numbers): what velocity errors come to is small, and they are not.
    """

    def declare(function: Callable) -> Callable:
        function.survey, function.summary = survey, of
        return function

    return declare


def needs_of(component: Callable | None) -> frozenset[str]:
    """What a component declared, through any number of `functools.partial`s."""
    return getattr(unbound(component)[0], "needs", frozenset())


def refused_on_of(component: Callable | None) -> Mapping[str, str]:
    """Where a component makes no sense, and why, through any number of `functools.partial`s."""
    return getattr(unbound(component)[0], "refused", {})


def reads_errors(component: Callable | None) -> bool:
    """Whether a loss takes a `DecoupledBatch`."""
    return getattr(unbound(component)[0], "on_errors", False)


def reads_of(component: Callable | None) -> str | None:
    """What a reward judges; None: it did not say."""
    return getattr(unbound(component)[0], "reads", None)


def vanishes(component: Callable) -> bool:
    """Whether a row without advantage adds nothing to this component."""
    return getattr(unbound(component)[0], "vanishes", False)


def compares_rows(component: Callable) -> bool:
    """Whether the rows of a group must be in one micro-batch for it."""
    return getattr(unbound(component)[0], "whole_groups", False)


def survey_of(component: Callable) -> Callable[..., Tensor] | None:
    """The survey that a loss declared, bound to numbers of the loss; None if it needs none."""
    return beside(component, "survey")


def summary_of(component: Callable) -> Callable[..., Tensor] | None:
    """What the survey of a loss sees of each row, bound to numbers of the loss; None: all of it."""
    return beside(component, "summary")


def beside(component: Callable, name: str) -> Callable | None:
    """A function that a component declared, bound to the numbers of the component that are keywords
    of that function; None if it declared none."""
    owner, numbers = unbound(component)
    function = getattr(owner, name, None)
    if function is None:
        return None
    return functools.partial(function, **read_of(function, defaults_of(owner) | numbers))


def read_of(function: Callable, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the numbers that a function takes; one with `**numbers` takes them all."""
    parameters = inspect.signature(function).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return {name: x for name, x in numbers.items() if takes_all or name in parameters}


def defaults_of(function: Callable | None) -> dict[str, Any]:
    """The keyword-only numbers of a function that have a default."""
    return getattr(function, "__kwdefaults__", None) or {}


def unbound(component: Callable | None) -> tuple[Callable | None, dict[str, Any]]:
    """The function inside any number of `functools.partial`s, and the numbers bound to it."""
    numbers: dict[str, Any] = {}
    while isinstance(component, functools.partial):
        numbers = {**component.keywords, **numbers}
        component = component.func
    return component, numbers
