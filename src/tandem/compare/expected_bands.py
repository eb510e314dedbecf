"""Expected bands of an experiment: mean curves and limits of its variants, kept beside it.

`expected.json` holds for each variant its configuration, seeds, mean curve and band. A run belongs
to the variant of its configuration, whatever its seed. A band is over iterations, the one axis that
all seeds share exactly: tokens, and samples where groups are drawn again, differ between them.
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
from tandem.compare.scores import is_share
from tandem.compare.statistics.curves import LEVEL, Band, prediction_band
from tandem.record import durable
from tandem.record.reading.provenance import code_of, fingerprint, provenance
from tandem.record.reading.states import describe_state
from tandem.record.reading.variants import Variant, facts_of
from tandem.settings.renamed import present_facts

FILE = "expected.json"
AXIS = "iterations"
MOST_POINTS = 20  # of a band: it must hold at all of them at once, so each one makes it wider
Facts = Mapping[str, object]  # of a configuration, as JSON holds them


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One variant of an experiment."""

    name: str
    facts: Facts
    seeds: Sequence[int]
    band: Band  # low and high are NaN where there is none: fewer than ten seeds, or all agree


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    folder: Path
    metric: str
    variants: Sequence[Expected]


def save(folder: Path, variants: Sequence[Variant], metric: str) -> Path:
    """Write the mean curves of all variants, with a band where there are ten seeds.

    Raises ValueError where a run goes on: what is kept is what whole runs showed.
    """
    runs = [run for one in variants for run in one.runs]
    going = [run.folder.name for run in runs if run.state == "goes on"]
    if going:
        many = f"{len(going)} of {len(runs)} runs {describe_state('goes on', len(going))}"
        raise ValueError(
            f"save_band={folder}: {many}, such as {going[0]}; keep a band of runs that have ended"
        )
    kept = [describe_variant(one, metric) for one in variants]
    facts = [one["configuration"] for one in kept]
    # A key that some do not have is the others' own, though its value there be null.
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
    """JSON with a line for each variant and each other entry, so that a change shows in a diff."""
    variants = ",\n".join(f"    {json.dumps(one)}" for one in content["variants"])
    parts = [f"  {json.dumps(k)}: {json.dumps(x)}" for k, x in content.items() if k != "variants"]
    return "{\n" + ",\n".join([*parts, f'  "variants": [\n{variants}\n  ]']) + "\n}\n"


def describe_variant(one: Variant, metric: str) -> dict[str, object]:
    """Raises ValueError where no run has the metric at an iteration that others have too."""
    curves = align_curves(one.runs, metric, AXIS)
    if curves is None:
        raise ValueError(f"{one.name}: its runs share no iteration with {metric}: no curve to save")
    places = thin(range(curves.y.shape[1]), MOST_POINTS)
    band = make_band(curves.middle[places], curves.y[:, places], metric)
    return {
        "name": one.name,
        "n": band.n,
        "seeds": one.seeds,
        "unfinished": [run.seed for run in one.runs if not run.finished],
        "code": code_of(one.runs),
        "fingerprint": fingerprint(one.runs),
        "configuration": as_json(facts_of(one.runs[0])),
        "x": band.x.tolist(),
        "mean": round_numbers(band.mean),
        "low": round_numbers(band.low),
        "high": round_numbers(band.high),
    }


def make_band(x: NDArray, y: NDArray, metric: str) -> Band:
    """A share ends at 0 and 1: cut there, the band holds the same runs."""
    ends = (0.0, 1.0) if is_share(metric) else (-math.inf, math.inf)
    found = prediction_band(x, y)
    none = np.full(len(x), np.nan)
    low, high = (none, none) if found is None else (found.low, found.high)
    mean = y.mean(0)
    return Band(x=x, mean=mean, low=np.clip(low, *ends), high=np.clip(high, *ends), n=len(y))


def round_numbers(values: Iterable[float | None]) -> list[float | None]:
    """Six digits of each; None for what there is none of."""
    return [None if x is None or math.isnan(x) else float(f"{x:.6g}") for x in values]


def as_json(facts: Facts) -> dict[str, object]:
    """As they come back from JSON."""
    return json.loads(json.dumps(facts, default=str))


def load(folder: Path) -> Experiment:
    """Raises ValueError for a folder whose expectation cannot be read."""
    try:
        content = json.loads((folder / FILE).read_bytes())
        variants = [read_expected(one, content["configuration"]) for one in content["variants"]]
        return Experiment(folder=folder, metric=content["metric"], variants=variants)
    except (OSError, ValueError, TypeError, LookupError) as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"band={folder} has no {FILE} that can be read ({said}); "
            f"save_band={folder} writes it from runs"
        ) from None


def read_expected(one: Mapping, shared: Facts) -> Expected:
    x, mean, low, high = (
        np.array(one[name], dtype=np.float64) for name in ("x", "mean", "low", "high")
    )
    return Expected(
        name=one["name"],
        facts=present_facts({**shared, **one["configuration"]}),
        seeds=one["seeds"],
        band=Band(x=x, mean=mean, low=low, high=high, n=one["n"]),
    )
