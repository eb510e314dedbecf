"""The table of new runs and the bands of an experiment: inside, or where each run leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tandem.compare.bands import Judged
from tandem.compare.expected_bands import Experiment
from tandem.compare.statistics.curves import FEWEST_FOR_BAND
from tandem.compare.table import Table

SHOWN = 4  # differences of a configuration


def describe_judged(judged: Judged) -> str:
    """One line: inside the band, where the run leaves it, or why neither is known."""
    band = judged.expected.band
    if judged.against:
        return f"different configuration: {list_differences(judged.against)}"
    if band.n < FEWEST_FOR_BAND:
        return f"no band yet, n = {band.n} of {FEWEST_FOR_BAND}"
    if judged.outside.any():
        return _describe_leaving(judged)
    if not judged.comes:
        return "no value at any of these iterations"
    if judged.comes < len(band.x):
        yet = "; in progress" if judged.run.state == "running" else ""
        return f"inside at the {judged.comes} of {len(band.x)} points reached{yet}"
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
