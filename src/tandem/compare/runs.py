"""Runs as they lie on disk: what was asked for, with which seed, and the numbers line by line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

# libyaml's loader knows no tags either, and is ten times as fast where it was built.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
CONFIG, MANIFEST, METRICS, TIMING = "config.yaml", "manifest.json", "metrics.jsonl", "timing.jsonl"
# Axes by the name a user gives, and what the logs call them, the first one that is there.
AXES = {
    "iterations": ("iteration",),
    "samples": ("samples",),
    "tokens": ("tokens", "steps"),  # of a flow: denoising steps
    "seconds": ("time/total",),
    "cpu_seconds": ("time/cpu",),
    "gpu_seconds": ("time/gpu",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One number through a run. A run that died is as short as it lived."""

    x: NDArray  # [P] float64
    y: NDArray  # [P] float64, finite


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    folder: Path
    config: Mapping[str, object]
    seed: int
    commit: str | None  # of the code that began it; None: unknown
    lines: Sequence[Mapping[str, float | None]]  # by iteration, of both logs

    @property
    def iterations(self) -> int:
        """How far it came."""
        return int(self.lines[-1]["iteration"]) if self.lines else 0

    @property
    def finished(self) -> bool:
        return bool(self.lines) and self.iterations >= int(self.config["iterations"])

    def names(self) -> set[str]:
        """Of all numbers that some line has."""
        return {name for line in self.lines for name in line}

    def curve(self, metric: str, axis: str = "iterations") -> Curve:
        """Where both numbers are there, in the order of iterations."""
        names = AXES[axis]
        points = [
            (x, line[metric])
            for line in self.lines
            if line.get(metric) is not None and (x := _first(line, names)) is not None
        ]
        x, y = np.array(points, dtype=np.float64).reshape(-1, 2).T
        return Curve(x=x, y=y)

    def score(self, metric: str) -> float | None:
        """The last value: of a run that died, the one it had. None: it never had any."""
        return next(
            (x for line in reversed(self.lines) if (x := line.get(metric)) is not None), None
        )


def _first(line: Mapping[str, float | None], names: Sequence[str]) -> float | None:
    return next((line[name] for name in names if line.get(name) is not None), None)


def find(places: Iterable[str | Path]) -> list[Path]:
    """The run directories at and below these places, each once, by path.

    Raises ValueError for a place that has none.
    """
    found: dict[Path, None] = {}
    for place in map(Path, places):
        here = sorted(_below(place))
        if not here:
            raise ValueError(f"{place}: there is no run in it; a run has {CONFIG} and {METRICS}")
        found |= dict.fromkeys(path.resolve() for path in here)
    return list(found)


def _below(place: Path) -> Iterator[Path]:
    return (path.parent for path in place.rglob(CONFIG) if (path.parent / METRICS).is_file())


def read(folder: Path) -> Run:
    """Raises ValueError for a directory that is no run of ours."""
    try:
        config = yaml.load((folder / CONFIG).read_bytes(), Loader=LOADER)
        manifest = json.loads((folder / MANIFEST).read_bytes())
        lines = logged(folder)
    except (OSError, yaml.YAMLError, json.JSONDecodeError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(f"{folder} cannot be read as a run: {reason}") from None
    starts = manifest["starts"]
    return Run(
        folder=folder,
        config=config,
        seed=int(config["seed"]),
        commit=starts[0]["code"]["commit"] if starts else None,
        lines=lines,
    )


def logged(folder: Path) -> list[dict[str, float | None]]:
    """The lines of both logs, joined by iteration; a line that a kill tore is left out."""
    of_timing = {line["iteration"]: line for line in _whole(folder / TIMING)}
    return [of_timing.get(line["iteration"], {}) | line for line in _whole(folder / METRICS)]


def _whole(path: Path) -> list[dict[str, float | None]]:
    raw = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in raw.splitlines(keepends=True) if line.endswith(b"\n")]
