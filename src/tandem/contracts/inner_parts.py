"""Calls of parts inside others: what they return is judged before it broadcasts or is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from traceback import walk_tb

from torch import Tensor

from tandem.contracts import callable_name
from tandem.contracts.outputs import Given
from tandem.contracts.parts import module_of, place_of, relative_path
from tandem.contracts.wrong_output import WrongOutput, wrong_value
from tandem.stop import Stop


@contextmanager
def report_errors(part: Callable) -> Iterator[None]:
    """A block in which an exception of a part becomes WrongOutput, one line with its place."""
    try:
        yield
    except Stop:
        raise
    except Exception as error:  # of the user's code, which may raise anything
        where, home = place_of(part), module_of(part)
        for frame, line in walk_tb(error.__traceback__):  # the last of its own, not a line of torch
            if frame.f_globals.get("__name__") == home:
                where = f"{relative_path(frame.f_code.co_filename)}:{line}"
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise WrongOutput(f"{callable_name(part)} at {where} raises {said}") from error


def ask_unwritten(part: Callable, *records: object) -> object:
    """What a part returns for these records. Raises WrongOutput for one that writes on them."""
    given = Given(part, records)
    value = part(*records)
    if (fault := given.fault()) is not None:
        raise WrongOutput(f"{callable_name(part)} at {place_of(part)} {fault}")
    return value


def ask_inner(
    part: Callable, *records: object, shape: Sequence[int], axes: str, lead: int = 0
) -> Tensor:
    """What a part returns for these records, a tensor of this shape behind its first `lead`
    axes.

    axes: the names of all its axes, such as "[B, T]". Raises WrongOutput for anything else, which
    would broadcast over rows or steps, and for a part that writes on its records.
    """
    value = ask_unwritten(part, *records)
    if isinstance(value, Tensor) and value.shape[lead:] == tuple(shape):
        return value
    raise wrong_value(part, value, f"a tensor {axes}, whose last axes are here {[*shape]}")
