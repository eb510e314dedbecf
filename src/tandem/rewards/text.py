"""Rewards computed from the text alone. Text of a model is never evaluated as code."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated

from tandem.contracts import positive, register_reward, regular_expression
from tandem.types import Prompt

# Bounded digits: `int` of very long ones is quadratic, and 1e999999999 would fill the memory.
NUMBER = re.compile(
    r"[+-]?(?:\d{1,3}(?:,\d{3}){1,40}|\d{1,120})?(?:\.\d{0,120})?(?:[eE][+-]?\d{1,3})?",
    re.ASCII,
)


@register_reward(judges="texts", reads={"answer"})
def exact_match(output: str, prompt: Prompt) -> float | None:
    """1 if the output equals the answer, ignoring surrounding white space; else 0."""
    if prompt.answer is None:
        return None
    return float(output.strip() == prompt.answer.strip())


@register_reward(judges="texts", reads={"answer"})
def regex_answer(
    output: str, prompt: Prompt, *, pattern: Annotated[str, regular_expression]
) -> float | None:
    """1 if the last match of `pattern` is the answer: the same text, or the same number.

    The first matching group counts, or the whole match of a pattern without groups.
    """
    if prompt.answer is None:
        return None
    found = None
    for found in re.finditer(pattern, output):  # noqa: B007 (the last one is wanted)
        pass
    if found is None:
        return 0.0
    given = next((group for group in found.groups() if group is not None), found.group())
    return float(same_answer(given, prompt.answer))


def same_answer(given: str, wanted: str) -> bool:
    """Equal texts, or equal numbers: `1,200.0` is `1200`, `.5` is `1/2`, `$3` is `3`."""
    given, wanted = given.strip(), wanted.strip()
    if given == wanted:
        return True
    number = to_number(given)
    return number is not None and number == to_number(wanted)


def to_number(text: str) -> Fraction | None:
    """The exact value of a decimal or a fraction of two; None if the text is neither."""
    parts = text.strip().lstrip("$").rstrip(".").split("/")
    values = [_decimal(part.strip()) for part in parts]
    if None in values or len(values) > 2 or 0 in values[1:]:
        return None
    return values[0] / values[1] if len(values) == 2 else values[0]


def _decimal(text: str) -> Fraction | None:
    plain = text.replace(",", "")
    if not NUMBER.fullmatch(text) or not re.match(r"[+-]?\.?\d", plain):
        return None
    return Fraction(plain)


@register_reward("length", judges="texts")
def max_length(output: str, prompt: Prompt, *, limit: Annotated[int, positive]) -> float:
    """0 up to `limit` characters, then -excess / limit, down to -1 at twice the limit."""
    return max(-1.0, min(0.0, (limit - len(output)) / limit))


@register_reward(judges="texts")
def target_length(
    output: str,
    prompt: Prompt,
    *,
    target: Annotated[int, positive],  # characters of an output that scores 1
) -> float:
    """1 - |characters - target| / target, at least 0."""
    return max(0.0, 1 - abs(len(output) - target) / target)


@register_reward(judges="texts")
def format(
    output: str,
    prompt: Prompt,
    *,
    # Regular expression that the whole output must match.
    pattern: Annotated[str, regular_expression],
) -> float:
    """1 if the whole output matches `pattern` (`.` also matches line ends), else 0."""
    return float(re.fullmatch(pattern, output, re.DOTALL) is not None)
