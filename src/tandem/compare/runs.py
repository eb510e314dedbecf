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
# Axes by the name a user gives: which log has it, under which names, the first one that is there.
AXES = {
    "iterations": (METRICS, ("iteration",)),
    "samples": (METRICS, ("samples",)),
    "tokens": (METRICS, ("tokens", "steps")),  # of a flow: denoising steps
    "seconds": (TIMING, ("time/total",)),
    "cpu_seconds": (TIMING, ("time/cpu",)),
    "gpu_seconds": (TIMING, ("time/gpu",)),
}
Line = Mapping[str, float | None]


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
    # Lines as they were written: those that nobody asks about are never parsed.
    logs: Mapping[str, Sequence[bytes]]

    @property
    def iterations(self) -> int:
        """How far it came."""
        lines = self.logs[METRICS]
        return int(self._parsed(METRICS, lines[-1])["iteration"]) if lines else 0

    @property
    def finished(self) -> bool:
        return bool(self.logs[METRICS]) and self.iterations >= int(self.config["iterations"])

    def names(self) -> set[str]:
        """Of the numbers that the first two lines and the last one have: an evaluation is there."""
        lines = self.logs[METRICS]
        ends = {*lines[:2], *lines[-1:]}
        return {name for line in ends for name in self._parsed(METRICS, line)}

    def curve(self, metric: str, axis: str = "iterations") -> Curve:
        """Where both numbers are there, in the order of iterations."""
        log, names = AXES[axis]
        found = self._with(metric)
        beside = found if log == METRICS else {line["iteration"]: line for line in self._all(log)}
        points = [
            (x, line[metric])
            for iteration, line in found.items()
            if (x := _first(beside.get(iteration, {}), names)) is not None
        ]
        x, y = np.array(points, dtype=np.float64).reshape(-1, 2).T
        return Curve(x=x, y=y)

    def score(self, metric: str) -> float | None:
        """The last value: of a run that died, the one it had. None: it never had any."""
        return next((line[metric] for line in reversed(self._with(metric).values())), None)

    def _with(self, metric: str) -> dict[int, Line]:
        """The lines that have a number of this name, by iteration."""
        name = json.dumps(metric).encode() + b":"
        lines = [self._parsed(METRICS, line) for line in self.logs[METRICS] if name in line]
        return {line["iteration"]: line for line in lines if line.get(metric) is not None}

    def _all(self, log: str) -> list[Line]:
        return [self._parsed(log, line) for line in self.logs[log]]

    def _parsed(self, log: str, line: bytes) -> Line:
        try:
            found = json.loads(line)
            assert "iteration" in found
        except (ValueError, TypeError, AssertionError):
            shown = line[:60].decode(errors="replace").strip()
            raise ValueError(f"{self.folder / log} has a line that is none: {shown!r}") from None
        return found


def _first(line: Line, names: Sequence[str]) -> float | None:
    return next((line[name] for name in names if line.get(name) is not None), None)


def find(places: Iterable[str | Path]) -> list[Path]:
    """The run directories at and below these places, each once, by path.

    Raises ValueError for a place that has none.
    """
    found: dict[Path, None] = {}
    for place in map(Path, places):
        here = sorted(_below(place))
        if not here:
            raise ValueError(f"{place}: there is no run in it; a run has {CONFIG} and {MANIFEST}")
        found |= dict.fromkeys(path.resolve() for path in here)
    return list(found)


def _below(place: Path) -> Iterator[Path]:
    # One that died before its first line is a run too.
    return (path.parent for path in place.rglob(CONFIG) if (path.parent / MANIFEST).is_file())


def read(folder: Path) -> Run:
    """Raises ValueError for a directory that is no run of ours."""
    try:
        config = yaml.load((folder / CONFIG).read_bytes(), Loader=LOADER)
        starts = json.loads((folder / MANIFEST).read_bytes())["starts"]
        return Run(
            folder=folder,
            config=config,
            seed=int(config["seed"]),
            commit=starts[0]["code"]["commit"] if starts else None,
            logs={name: whole_lines(folder / name) for name in (METRICS, TIMING)},
        )
    except (OSError, yaml.YAMLError, ValueError, TypeError, LookupError) as error:
        reason = next(iter(str(error).splitlines()), "")
        said = f"{type(error).__name__}: {reason}"
        raise ValueError(f"{folder} cannot be read as a run ({said})") from None


def whole_lines(path: Path) -> list[bytes]:
    """A line that a kill tore is left out."""
    raw = path.read_bytes() if path.exists() else b""
    return [line for line in raw.splitlines(keepends=True) if line.endswith(b"\n")]
