"""The keys of the two models of a chain, in messages that each writes as if it were alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature

from tandem.policies.flow.policy import FlowPolicy
from tandem.policies.flow.records import FlowSampling
from tandem.policies.language.policy import LanguagePolicy
from tandem.policies.language.records import Sampling
from tandem.types import PICTURE, TEXT, Admission

KEYS = {
    name: {"model": signature(model).parameters, "rollout": signature(sampling).parameters}
    for name, model, sampling in (
        (TEXT, LanguagePolicy, Sampling),
        (PICTURE, FlowPolicy, FlowSampling),
    )
}
# Not a part of a path or of a longer name, and not a group that names its key already.
WRITTEN = re.compile(r"(?<![\w./])(model|rollout)([./])(\w+)\b(?!@)")


def in_segment(name: str, said: str) -> str:
    """A message with the keys of that segment: `model.path` of a text is `model.text.path`, and
    the group `model/quantization` is `model/quantization@model.text.quantization`."""

    def place(found: re.Match[str]) -> str:
        whole, (top, mark, key) = found[0], found.groups()
        if key not in KEYS[name][top]:
            return whole
        there = f"{top}.{name}.{key}"
        return there if mark == "." else f"{whole}@{there}"

    return WRITTEN.sub(place, said)


@contextmanager
def keys_of(name: str) -> Iterator[None]:
    """A context in which the message of a ValueError has the keys of that segment."""
    try:
        yield
    except ValueError as error:
        error.args = (in_segment(name, str(error)),)
        raise


def admit_in_segment(name: str, admit: Callable[..., Admission], *given, **options) -> Admission:
    """The admission by the model of that segment; reasons and errors have its keys."""
    with keys_of(name):
        kept, dropped = admit(*given, **options)
    return kept, [(prompt, in_segment(name, why)) for prompt, why in dropped]
