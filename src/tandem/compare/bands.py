"""The check of new runs against the stored bands of an experiment, and its table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandem.compare.expected_bands import AXIS, Expected, Experiment, Facts, as_json
from tandem.compare.statistics.curves import FEWEST_FOR_BAND
from tandem.compare.table import Table
from tandem.record.reading.facts import facts_of
from tandem.record.reading.runs import Run
from tandem.record.reading.variants import show_value

SHOWN = 4  # differences of a configuration


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
    found = [
        (one, *compare_facts(as_json(facts_of(run, fixed=one.facts)), one.facts))
        for one in experiment.variants
    ]
    nearest, against, unknown = min(found, key=lambda item: (len(item[1]), len(item[2])))
    curve = run.curve(experiment.metric, AXIS)
    at = dict(zip(curve.x.tolist(), curve.y.tolist(), strict=True))
    x = nearest.band.x
    values = np.array([at.get(own, math.nan) for own in x.tolist()])
    if run.is_finished and len(curve.x):  # one that ended early goes on as seeds of the band do
        values[x > curve.x[-1]] = curve.y[-1]
    # The last point may be where a seed ended early, between the evaluations of others.
    if len(curve.x) and (x[-1:] < curve.x[-1]).any():
        values[-1:] = np.interp(x[-1:], curve.x, curve.y)
    return Judged(run=run, expected=nearest, against=against, unknown=unknown, values=values)


def compare_facts(facts: Facts, other: Facts) -> tuple[dict[str, tuple[object, object]], list[str]]:
    """Differing values, and keys that only one has. Moving a function of Tandem to another module
    is no difference."""
    apart = [key for key in sorted(facts.keys() & other.keys()) if facts[key] != other[key]]
    shown = {key: (show_value(facts[key]), show_value(other[key])) for key in apart}
    against = {key: (own, its) for key, (own, its) in shown.items() if own != its}
    return against, sorted(facts.keys() ^ other.keys())


def describe_judged(judged: Judged) -> str:
    """One line: inside the band, where the run leaves it, or why neither is known."""
    band = judged.expected.band
    if judged.against:
        return f"different configuration: {list_differences(judged.against)}"
    reached = f"{judged.comes} of {len(band.x)} points reached"
    if band.n < FEWEST_FOR_BAND:
        left = f"; {reached}" if judged.comes < len(band.x) else ""
        return f"no band yet, n = {band.n} of {FEWEST_FOR_BAND}{left}"
    if judged.outside.any():
        return _describe_leaving(judged)
    if not judged.comes:
        return "no value at any of these iterations"
    if judged.comes < len(band.x):
        yet = "; in progress" if judged.run.state == "running" else ""
        return f"inside at the {reached}{yet}"
    known = int((~np.isnan(band.low)).sum())
    return f"inside at all {known} points" if known else "all seeds agree: no band"


def _describe_leaving(judged: Judged) -> str:
    band, outside = judged.expected.band, judged.outside
    i = int(np.flatnonzero(outside)[0])
    where = f"outside from iteration {band.x[i]:g}: {judged.values[i]:.4g}"
    of = f"outside at {outside.sum()} of {len(band.x)} points"
    return f"{where}, where the band is [{band.low[i]:.4g}, {band.high[i]:.4g}]; {of}"


def list_differences(against: Mapping[str, tuple[object, object]]) -> str:
    said = [f"{key} is {own}, expected {other}" for key, (own, other) in against.items()]
    more = [f"and {len(said) - SHOWN} more"] if len(said) > SHOWN else []
    return ", ".join([*said[:SHOWN], *more])


def table_judged(judged: Sequence[Judged], experiment: Experiment) -> Table:
    unknown = dict.fromkeys(key for one in judged if not one.against for key in one.unknown)
    own = [one for one in judged if one.run.seed in one.expected.seeds and not one.against]
    notes = ["In 5 % of cases a run like those of the experiment leaves its band somewhere."]
    if unknown:
        notes.append(f"Ignored keys, which only one side has: {', '.join(unknown)}.")
    if own:
        seeds = ", ".join(str(one.run.seed) for one in own)
        notes.append(f"Not new: the band was computed from seeds {seeds} as well.")
    return Table(
        name="band",
        title=f"{experiment.metric}: runs compared with {experiment.folder}",
        columns=("run", "seed", "expected as", "n of the band", "verdict"),
        rows=[
            (
                one.run.folder.name,
                str(one.run.seed),
                "-" if one.against else one.expected.name,
                str(one.expected.band.n),
                describe_judged(one),
            )
            for one in judged
        ],
        notes=notes,
    )
