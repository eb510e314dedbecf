"""The check of new runs against the stored bands of an experiment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandem.compare.expected_bands import AXIS, Expected, Experiment, Facts, as_json
from tandem.record.reading.runs import Run
from tandem.record.reading.variants import facts_of, show_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A run and the stored variant whose configuration is nearest to its own."""

    run: Run
    expected: Expected
    against: Mapping[str, tuple[object, object]]  # key: (value of the run, expected value)
    unknown: Sequence[str]  # keys that only one of the two has
    values: NDArray  # [P] of the run; NaN where it has none

    @property
    def comes(self) -> int:
        """Number of points that the run reached."""
        return int((~np.isnan(self.values)).sum())

    @property
    def outside(self) -> NDArray:
        """[P] bool: points that the run reached outside the band."""
        return self.expected.band.leaves(self.values) & ~np.isnan(self.values)

    @property
    def holds(self) -> bool:
        """Whether the run agrees with the experiment; true if there is no band yet."""
        whole = self.comes == len(self.values)
        return not self.against and not self.outside.any() and whole


def judge(run: Run, experiment: Experiment) -> Judged:
    """The run and its nearest variant. A different value makes a different configuration. A key
    that only one of them has is only named, so that bands outlive new options of the code."""
    facts = as_json(facts_of(run))
    found = [(one, *compare_facts(facts, one.facts)) for one in experiment.variants]
    nearest, against, unknown = min(found, key=lambda item: (len(item[1]), len(item[2])))
    curve = run.curve(experiment.metric, AXIS)
    at = dict(zip(curve.x.tolist(), curve.y.tolist(), strict=True))
    values = np.array([at.get(x, math.nan) for x in nearest.band.x.tolist()])
    return Judged(run=run, expected=nearest, against=against, unknown=unknown, values=values)


def compare_facts(facts: Facts, other: Facts) -> tuple[dict[str, tuple[object, object]], list[str]]:
    """Differing values, and keys that only one has. Moving a function of Tandem to another module
    is no difference."""
    apart = [key for key in sorted(facts.keys() & other.keys()) if facts[key] != other[key]]
    shown = {key: (show_value(facts[key]), show_value(other[key])) for key in apart}
    against = {key: (own, its) for key, (own, its) in shown.items() if own != its}
    return against, sorted(facts.keys() ^ other.keys())
