"""The error of a component's invalid output, and what a component read that explains another error.

Reading a field that a component did not declare, or that a row of the data lacks, is an error of
one line with the place and the declaration that is missing.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from traceback import walk_tb

from torch import Tensor

from tandem.contracts.parts import callable_name, fields_of, place_of, relative_path
from tandem.stop import Stop


class WrongOutput(Stop, ValueError):
    """An invalid output of a component. The message is one line."""


def refuse_undeclared(
    kind: str, part: Callable, records: Sequence[object], error: TypeError | AttributeError
) -> None:
    """Raise WrongOutput for a part that reads a field that it did not declare, which is None."""
    absent = {
        name
        for record in records
        if is_dataclass(record)
        for name, value in fields_of(record).items()
        if value is None
    }
    if "NoneType" not in str(error) or not absent:
        return
    for frame, line in reversed(list(walk_tb(error.__traceback__))[1:]):
        text = linecache.getline(frame.f_code.co_filename, line)
        # The names on the line, or, if there are none, in the function around it.
        for words in (re.findall(r"\w+", text), frame.f_code.co_names):
            if read := sorted(absent.intersection(words)):
                listed = ", ".join(f'"{name}"' for name in read)
                file = relative_path(frame.f_code.co_filename)
                raise WrongOutput(
                    f"{kind} {callable_name(part)} at {file}:{line} reads "
                    f"{', '.join(read)}, which the policy was not asked for; declare "
                    f"reads={{{listed}}} in its decorator"
                ) from error


def refuse_absent_field(
    kind: str, part: Callable, records: Sequence[object], error: KeyError
) -> None:
    """Raise WrongOutput for a part that reads a field that a row of the data lacks.

    A reward then only misses the score of that row, but an advantage needs all rows.
    """
    frame, line = list(walk_tb(error.__traceback__))[-1]
    asks = "fields" in linecache.getline(frame.f_code.co_filename, line)
    prompts = [
        prompt
        for record in records
        if is_dataclass(record) and "prompts" in {field.name for field in fields(record)}
        for prompt in record.prompts
    ]
    lacking = [one for one in prompts if asks and not one.fields.keys() >= {*error.args}]
    if lacking:
        name, prompt = error.args[0], lacking[0]
        file = relative_path(frame.f_code.co_filename)
        raise WrongOutput(
            f"{kind} {callable_name(part)} at {file}:{line} reads the field "
            f"{name!r}, and prompt {prompt.id} of {prompt.source} has none: "
            f"{str(prompt.text or prompt.messages)[:60]!r}; give it to every row of the data, "
            f"or read it by .get({name!r}, NUMBER)"
        ) from error


def wrong_value(part: Callable, value: object, want: str) -> WrongOutput:
    """The error of a function or method that returned something else than `want`."""
    kind = f"a {type(value).__name__}"
    if isinstance(value, Tensor):
        kind = f"{value.dtype} {[*value.shape]}"
    name = getattr(part, "__qualname__", callable_name(part))
    return WrongOutput(f"{name} at {place_of(part)} returned {kind}; return {want}")
