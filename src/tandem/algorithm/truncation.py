"""A truncation handling and a sampling strategy whose rows are checked before others read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tandem.contracts import Facts, Wrapper, callable_name, facts_of
from tandem.contracts.inner_parts import ask_unwritten
from tandem.contracts.outputs import WIDE, refuse_name
from tandem.contracts.parts import place_of
from tandem.contracts.wrong_output import WrongOutput
from tandem.types import Rollout, Scores


@dataclass(frozen=True)
class Checked(Wrapper):
    """A part whose results are checked; its facts are those of the part. The checks read
    shapes and types, which waits for no GPU, and values only if there are more rows than taken."""

    of: Callable

    def own_facts(self, declared: Facts) -> Facts:
        return facts_of(self.of)


class CheckedTruncation(Checked):
    """A truncation handling whose scores and rows are checked."""

    def __call__(self, scores: Scores, rollout: Rollout) -> tuple[Scores, Rollout]:
        """Its result. Raises WrongOutput for an invalid one, and if it writes on its arguments."""
        made = ask_unwritten(self.of, scores, rollout)
        fault = _find_fault(made, (Scores, Rollout))
        if fault is not None:
            place = f"{callable_name(self.of)} at {place_of(self.of)}"
            raise WrongOutput(f"truncation handling {place} {fault}")
        return made


class CheckedStrategy(Checked):
    """A sampling strategy whose rows and names of metrics are checked."""

    def __call__(self, source: object, prompts: object) -> tuple[Rollout, Scores]:
        """Its rows with their scores. Raises WrongOutput for rows that are not of the source, for
        more trained rows than it took, and for metrics with names that `refuse_name` refuses."""
        made = self.of(source, prompts)
        for name in source.metrics:
            refuse_name(str(name), self.of, known=())
        fault = _find_fault(made, (Rollout, Scores))
        if fault is None and not source.taken:
            fault = "returned rows that are not of its source; take them by source.sample(prompts)"
        if fault is None:
            fault = _find_repeat(made[0], source.samples)
        if fault is not None:
            raise WrongOutput(
                f"sampling strategy {callable_name(self.of)} at {place_of(self.of)} {fault}"
            )
        return made


def _find_repeat(rollout: Rollout, taken: int) -> str | None:
    """The fault of rows that are trained more often than they were taken. Rows of an earlier
    iteration are not, and demonstrations have no key to tell them apart."""
    if rollout.key is None or len(rollout.mask) <= taken:
        return None
    # A row that is not trained may stand beside those taken.
    trained = rollout.mask.any(1)
    if rollout.baseline is not None:
        trained = trained & ~rollout.baseline
    rows = trained.nonzero()[:, 0].tolist()
    if len(rows) <= taken:
        return None
    # Branches of one iteration share their keys, and have groups of their own.
    drawn, first = [*zip(rollout.key.tolist(), rollout.group.tolist(), strict=True)], {}
    for row in rows:
        if (before := first.setdefault(drawn[row], row)) != row:
            return (
                f"returned {len(rows)} rows to train on and took {taken}: row {row} is row "
                f"{before} again; return each row once"
            )
    return None


def _find_fault(made: object, wanted: tuple[type, type]) -> str | None:
    kinds = [type(one) for one in made] if isinstance(made, tuple | list) else [type(made)]
    if kinds != [*wanted]:
        shown = ", ".join(kind.__name__ for kind in kinds)
        names = ", ".join(kind.__name__.lower() for kind in wanted)
        return f"returned {shown}; return ({names})"
    scores, rollout = made if wanted[0] is Scores else made[::-1]
    if len(scores.total) != len(rollout.mask):
        return f"returned {len(scores.total)} scores of {len(rollout.mask)} rows"
    if not len(rollout.mask):
        return "returned no rows; return at least one, whose mask may be False"
    if scores.total.dtype not in WIDE:
        return f"returned a Scores.total of {scores.total.dtype}; return float32"
    kinds = {
        "Rollout.mask": (rollout.mask, torch.bool),
        "Rollout.group": (rollout.group, torch.int64),
        "Scores.scored": (scores.scored, torch.bool),
    }
    for name, (tensor, dtype) in kinds.items():
        if tensor.dtype != dtype:
            return f"returned a {name} of {tensor.dtype}; return {str(dtype)[6:]}"
    return None
