"""A truncation handling whose result is checked before it is compared and logged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tandem.contracts import Facts, Wrapper, facts_of
from tandem.contracts.outputs import WrongOutput, named, place_of, versions_of
from tandem.types import Rollout, Scores


@dataclass(frozen=True)
class CheckedTruncation(Wrapper):
    """Its facts are those of the part. The checks read no number, so they never wait for a GPU."""

    of: Callable

    def own_facts(self, declared: Facts) -> Facts:
        return facts_of(self.of)

    def wrapped(self) -> Mapping[str, Callable]:
        return {"of": self.of}

    def __call__(self, scores: Scores, rollout: Rollout) -> tuple[Scores, Rollout]:
        """Raises WrongOutput for an invalid result, and for one that writes on its arguments."""
        before = versions_of((scores, rollout))
        made = self.of(scores, rollout)
        fault = _find_fault(made)
        if versions_of((scores, rollout)) != before:
            fault = "writes on its arguments, which others read; return dataclasses.replace(...)"
        if fault is not None:
            place = f"{named(self.of)} at {place_of(self.of)}"
            raise WrongOutput(f"truncation handling {place} {fault}")
        return made


def _find_fault(made: object) -> str | None:
    kinds = [type(one) for one in made] if isinstance(made, tuple | list) else [type(made)]
    if kinds != [Scores, Rollout]:
        shown = ", ".join(kind.__name__ for kind in kinds)
        return f"returned {shown}; return (scores, rollout)"
    scores, rollout = made
    if len(scores.total) != len(rollout.mask):
        return f"returned {len(scores.total)} scores of {len(rollout.mask)} rows"
    if not scores.total.is_floating_point():
        return f"returned a Scores.total of {scores.total.dtype}; return float32"
    if rollout.mask.is_floating_point():
        return f"returned a Rollout.mask of {rollout.mask.dtype}; return bool"
    return None
