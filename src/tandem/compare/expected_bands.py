"""Expected bands of an experiment: mean curves and limits of its variants, stored beside it.

`expected.json` holds the configuration, seeds, mean curve and band of each variant. A run belongs
to the variant of its configuration, whatever its seed. A band is over iterations, the only axis
that seeds share exactly: tokens differ between seeds, and so do samples if groups are redrawn.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandem.compare.learning_curves import align_curves, thin
from tandem.compare.scores import bounds_of
from tandem.compare.statistics.curves import Band, prediction_band
from tandem.compare.statistics.intervals import LEVEL
from tandem.record import durable
from tandem.record.foreign import UNREADABLE, check_object, read_object, reason_of
from tandem.record.reading.facts import facts_of_runs
from tandem.record.reading.provenance import code_of, fingerprint, provenance
from tandem.record.reading.states import describe_state
from tandem.record.reading.variants import Variant
from tandem.settings.renamed import present_facts
from tandem.settings.settings import key_of

FILE = "expected.json"
AXIS = "iterations"
CURVES = ("x", "mean", "low", "high")
MOST_POINTS = 20  # of a band: it must hold at all points at once, so each one widens it
Facts = Mapping[str, object]  # of a configuration, as JSON holds them


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One variant of an experiment."""

    name: str
    facts: Facts
    seeds: Sequence[int]
    band: Band  # low and high are NaN for fewer than ten seeds, or where all agree


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    folder: Path
    metric: str
    variants: Sequence[Expected]


def save(folder: Path, variants: Sequence[Variant], metric: str) -> Path:
    """Write the mean curves of all variants, with a band from ten seeds on.

    Raises ValueError if a run is in progress: only complete runs are stored.
    """
    runs = [run for one in variants for run in one.runs]
    going = [run.folder.name for run in runs if run.state == "running"]
    if going:
        many = f"{len(going)} of {len(runs)} runs {describe_state('running', len(going))}"
        raise ValueError(
            f"save_band={folder}: {many}, such as {going[0]}; save the band when all have ended"
        )
    kept = [describe_variant(one, metric) for one in variants]
    facts = [one["configuration"] for one in kept]
    # A key that one variant lacks is not shared, even if the others have null there.
    shared = {
        key: x for key, x in facts[0].items() if all(key in own and own[key] == x for own in facts)
    }
    content = {
        "metric": metric,
        "axis": AXIS,
        "level": LEVEL,
        "provenance": provenance(runs),
        "configuration": shared,
        "variants": [
            one | {"configuration": {key: x for key, x in own.items() if key not in shared}}
            for one, own in zip(kept, facts, strict=True)
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    durable.replace(folder / FILE, write_lines(content).encode())
    return folder / FILE


def write_lines(content: Mapping[str, object]) -> str:
    """JSON with one line per variant and per other entry, so that diffs are readable."""
    variants = ",\n".join(f"    {json.dumps(one)}" for one in content["variants"])
    parts = [f"  {json.dumps(k)}: {json.dumps(x)}" for k, x in content.items() if k != "variants"]
    return "{\n" + ",\n".join([*parts, f'  "variants": [\n{variants}\n  ]']) + "\n}\n"


def describe_variant(one: Variant, metric: str) -> dict[str, object]:
    """The entry of a variant. Raises ValueError if its runs share no iteration of the metric."""
    curves = align_curves(one.runs, metric, AXIS)
    if curves is None:
        raise ValueError(f"{one.name}: its runs have no iteration with {metric} in common")
    places = thin(range(curves.y.shape[1]), MOST_POINTS)
    band = make_band(curves.middle[places], curves.y[:, places], metric)
    return {
        "name": one.name,
        "n": band.n,
        "seeds": one.seeds,
        "unfinished": [run.seed for run in one.runs if not run.is_finished],
        "code": code_of(one.runs),
        "fingerprint": fingerprint(one.runs),
        "configuration": as_json(facts_of_runs(one.runs)[0]),
        "x": band.x.tolist(),
        "mean": round_numbers(band.mean),
        "low": round_numbers(band.low),
        "high": round_numbers(band.high),
    }


def make_band(x: NDArray, y: NDArray, metric: str) -> Band:
    """The band, clipped to [0, 1] for a share, which changes no verdict."""
    ends = bounds_of(metric)
    found = prediction_band(x, y)
    none = np.full(len(x), np.nan)
    low, high = (none, none) if found is None else (found.low, found.high)
    mean = y.mean(0)
    return Band(x=x, mean=mean, low=np.clip(low, *ends), high=np.clip(high, *ends), n=len(y))


def round_numbers(values: Iterable[float | None]) -> list[float | None]:
    """The values with six digits; NaN becomes None."""
    return [None if x is None or math.isnan(x) else float(f"{x:.6g}") for x in values]


def as_json(facts: Facts) -> dict[str, object]:
    """The facts after a round trip through JSON."""
    return json.loads(json.dumps(facts, default=str))


def load(folder: Path) -> Experiment:
    """The stored experiment. Raises ValueError if its file cannot be read."""
    try:
        content = read_object(folder / FILE, "metric", "configuration", "variants")
        variants = [read_expected(one, content["configuration"]) for one in content["variants"]]
        if not variants or not isinstance(content["metric"], str):
            raise ValueError("it has no metric or no variant")
        return Experiment(folder=folder, metric=content["metric"], variants=variants)
    except UNREADABLE as error:
        raise ValueError(
            f"band={folder}: {FILE} there cannot be read ({reason_of(error)}); write it with "
            f"save_band={folder}"
        ) from None


def read_expected(one: object, shared: Facts) -> Expected:
    """Raises ValueError for what `save` does not write."""
    found = check_object(one, "a variant", "name", "n", "seeds", "configuration", *CURVES)
    x, mean, low, high = (np.array(found[name], dtype=np.float64) for name in CURVES)
    if x.ndim != 1 or not x.shape == mean.shape == low.shape == high.shape:
        raise ValueError("the curves of a variant are not lists of equal length")
    kinds = {"name": str, "n": int, "seeds": list, "configuration": dict}
    for name, kind in kinds.items():
        if type(found[name]) is not kind:
            raise ValueError(f"{name} of a variant has the wrong type")
    facts = present_facts({**shared, **found["configuration"]})
    return Expected(
        name=found["name"],
        facts={key: x for key, x in facts.items() if key_of(key).compared},  # today
        seeds=found["seeds"],
        band=Band(x=x, mean=mean, low=low, high=high, n=found["n"]),
    )
