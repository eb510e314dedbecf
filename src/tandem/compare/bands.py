"""The check of new runs against the bands that an experiment is expected to stay in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandem.compare.expected_bands import AXIS, Expected, Experiment, Facts, plain
from tandem.compare.statistics.curves import FEWEST_FOR_BAND
from tandem.compare.table import Table
from tandem.record.reading.runs import Run
from tandem.record.reading.variants import facts_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A run beside the variant that is nearest to its configuration."""

    run: Run
    expected: Expected
    against: Mapping[str, tuple[object, object]]  # keys: what the run has, what was expected
    unknown: Sequence[str]  # keys that one of the two has no value for
    values: NDArray  # [P] of the run; NaN where it has none

    @property
    def comes(self) -> int:
        """Points that it came to."""
        return int((~np.isnan(self.values)).sum())

    @property
    def outside(self) -> NDArray:
        """[P] bool, of the points that it came to."""
        return self.expected.band.leaves(self.values) & ~np.isnan(self.values)

    @property
    def holds(self) -> bool:
        """Nothing contradicts what was expected. It does, too, where there is no band yet."""
        whole = self.comes == len(self.values)
        return not self.against and not self.outside.any() and whole


def judge(run: Run, experiment: Experiment) -> Judged:
    """A value that differs makes another configuration. A key that only one of the two has does
    not, or no band would outlive the next option of the code; it is named."""
    facts = plain(facts_of(run))
    found = [(one, *compared(facts, one.facts)) for one in experiment.variants]
    nearest, against, unknown = min(found, key=lambda item: (len(item[1]), len(item[2])))
    curve = run.curve(experiment.metric, AXIS)
    at = dict(zip(curve.x.tolist(), curve.y.tolist(), strict=True))
    values = np.array([at.get(x, math.nan) for x in nearest.band.x.tolist()])
    return Judged(run=run, expected=nearest, against=against, unknown=unknown, values=values)


def compared(facts: Facts, other: Facts) -> tuple[dict[str, tuple[object, object]], list[str]]:
    both = facts.keys() & other.keys()
    against = {key: (facts[key], other[key]) for key in sorted(both) if facts[key] != other[key]}
    return against, sorted(facts.keys() ^ other.keys())


def verdict(judged: Judged) -> str:
    """One line: inside, or where it leaves, or why neither can be said."""
    band = judged.expected.band
    if judged.against:
        return f"another configuration: {listed(judged.against)}"
    if band.n < FEWEST_FOR_BAND:
        return f"no band yet, n = {band.n} of {FEWEST_FOR_BAND}"
    if judged.outside.any():
        return leaving(judged)
    if not judged.comes:
        return "it has no value at any of these iterations"
    if judged.comes < len(band.x):
        yet = "; it goes on" if judged.run.state == "goes on" else ""
        return f"inside at the {judged.comes} of {len(band.x)} points that it came to{yet}"
    known = int((~np.isnan(band.low)).sum())
    return f"inside at all {known} points" if known else "all seeds agree: no band"


def leaving(judged: Judged) -> str:
    band, outside = judged.expected.band, judged.outside
    i = int(np.flatnonzero(outside)[0])
    where = f"outside from iteration {band.x[i]:g}: {judged.values[i]:.4g}"
    of = f"outside at {outside.sum()} of {len(band.x)} points"
    return f"{where}, where the band is [{band.low[i]:.4g}, {band.high[i]:.4g}]; {of}"


def listed(against: Mapping[str, tuple[object, object]], most: int = 4) -> str:
    said = [f"{key} is {own}, expected {other}" for key, (own, other) in against.items()]
    more = [f"and {len(said) - most} more"] if len(said) > most else []
    return ", ".join([*said[:most], *more])


def of_judged(judged: Sequence[Judged], experiment: Experiment) -> Table:
    unknown = dict.fromkeys(key for one in judged if not one.against for key in one.unknown)
    own = [one for one in judged if one.run.seed in one.expected.seeds and not one.against]
    notes = ["A run like those of the experiment leaves its band at any point in 5 % of cases."]
    if unknown:
        notes.append(f"Judged in spite of keys that one side alone has: {', '.join(unknown)}.")
    if own:
        seeds = ", ".join(str(one.run.seed) for one in own)
        notes.append(f"Seeds that the band was made of, hence no new ones: {seeds}.")
    return Table(
        name="band",
        title=f"{experiment.metric}: runs beside {experiment.folder}",
        columns=("run", "seed", "expected as", "n of the band", "verdict"),
        rows=[
            (
                one.run.folder.name,
                str(one.run.seed),
                "-" if one.against else one.expected.name,
                str(one.expected.band.n),
                verdict(one),
            )
            for one in judged
        ],
        notes=notes,
    )
