"""Units of numbers: those of a loss without one, and those in nats per step."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.algorithm.algorithm import Algorithm
from tandem.contracts import facts_of, iterate_innermost, name_of, numbers_of
from tandem.contracts.bounds import values_of
from tandem.settings.settings import Settings


def without_unit(algorithm: Algorithm) -> Iterator[tuple[str, str, str]]:
    """(key, value, loss) of the loss and of those in it, for numbers without a unit and lists of
    them."""
    for where, part in iterate_innermost(algorithm.loss, "algorithm.loss", wrappers=True):
        known = facts_of(part).units
        for name, number in numbers_of(part).items():
            numbers = values_of(number)
            is_number = numbers and all(type(x) in (int, float) for x in numbers)
            if is_number and name not in known:
                shown = ", ".join(f"{x:g}" for x in numbers)
                is_one = not isinstance(number, (list, tuple))
                yield f"{where}.{name}", shown if is_one else f"[{shown}]", name_of(part)


def numbers_of_a_kl(algorithm: Algorithm) -> dict[str, float]:
    """The given numbers, by key, that a KL in nats per step is compared with."""
    given = {"target_kl": algorithm.target_kl, "kl.kl_target": algorithm.kl.kl_target}
    return {f"algorithm.{name}": value for name, value in given.items() if value is not None}


def warning(algorithm: Algorithm, settings: Settings) -> str | None:
    """The warning at the start of a run on a flow; None if every number has a unit."""
    found = list(without_unit(algorithm))
    if settings.dynamics.kernel is None or not found:
        return None
    (key, _, loss), shown = found[0], ", ".join(f"{key}={value}" for key, value, _ in found)
    unit = settings.dynamics.clip_scale
    here = "" if unit == 1 else f", and 1 for tokens is {unit:.2g} here"
    return (
        f"units       {shown} of {loss} has no unit: log-probabilities of a flow are means over "
        f"its latent dimensions{here}; declare units={{{key.rpartition('.')[2]!r}: 'clip'}}, or "
        "'none' if it does not scale"
    )
