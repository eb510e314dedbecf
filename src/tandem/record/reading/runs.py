"""Runs as read from disk: configuration, seed and logs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandem.record.foreign import (
    JSON_BYTES,
    LOG_BYTES,
    UNREADABLE,
    check_file,
    read_bytes,
    read_config,
    reason_of,
)
from tandem.record.reading.logs import Log, lines_from_the_end
from tandem.record.reading.states import State, is_working

CONFIG, MANIFEST, METRICS, TIMING = "config.yaml", "manifest.json", "metrics.jsonl", "timing.jsonl"
EVALUATIONS = "evaluations.jsonl"
COMMIT = re.compile("[0-9a-zA-Z]+")
# Axis as a user names it -> its log, and its names there, of which the first present one is used.
AXES = {
    "iterations": (METRICS, ("iteration",)),
    "samples": (METRICS, ("samples",)),
    "tokens": (METRICS, ("tokens", "steps")),  # of a flow: denoising steps
    "seconds": (TIMING, ("time/total",)),
    "cpu_seconds": (TIMING, ("time/cpu",)),
    "gpu_seconds": (TIMING, ("time/gpu",)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One number over a run; a run that died has fewer points."""

    x: NDArray  # [P] float64
    y: NDArray  # [P] float64, finite


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run directory as it was read: its configuration, its logs and its state."""

    folder: Path
    config: Mapping[str, object]
    seed: int
    code: Sequence[str]  # of each start: its commit, and whether files had changed since
    works: bool | None  # whether a process was running it when it was read; None: unknown
    logs: Mapping[str, Log]

    @property
    def iterations(self) -> int:
        """The last logged iteration."""
        lines = self.logs[METRICS].iterations
        return int(lines[-1]) if len(lines) else 0

    @property
    def finished(self) -> bool:
        lines = self.logs[METRICS].iterations
        return len(lines) > 0 and self.iterations >= int(self.config["iterations"])

    @property
    def state(self) -> State:
        """Finished, or else whether it still runs, as `is_working` sees it."""
        if self.finished:
            return "finished"
        return {True: "goes on", False: "died", None: "not finished"}[self.works]

    def names(self) -> set[str]:
        return self.logs[METRICS].names()

    def where(self, metric: str) -> NDArray:
        """[P] int64: the iterations that have a value of the metric."""
        return self.logs[METRICS].where(metric)

    def values(self, metric: str, iterations: NDArray) -> NDArray:
        """[P] float64; NaN where there is none."""
        return self.logs[METRICS].numbers(metric, iterations)

    def places(self, axis: str, iterations: NDArray) -> NDArray:
        """[P] float64: the positions of these iterations on an axis; NaN if not recorded."""
        log, names = AXES[axis]
        found = np.full(len(iterations), np.nan)
        for name in names:
            if not np.isfinite(found).any():
                found = self.logs[log].numbers(name, iterations)
        return found

    def curve(self, metric: str, axis: str = "iterations") -> Curve:
        """The points that have both numbers, in order of iterations."""
        at = self.where(metric)
        x, y = self.places(axis, at), self.values(metric, at)
        known = np.isfinite(x)
        return Curve(x=x[known], y=y[known])

    def score(self, metric: str) -> float | None:
        """The last value, also of a run that died; None: there is none."""
        last = self.where(metric)[-1:]
        return float(self.values(metric, last)[0]) if len(last) else None


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


def _code(of_start: Mapping[str, object]) -> str:
    commit = of_start["commit"]
    if not isinstance(commit, str) or COMMIT.fullmatch(commit) is None:
        return "unknown code"  # an untrusted text must not reach tables and figures
    return f"{commit[:10]}+changes" if of_start.get("dirty") else commit[:10]


def check_rest(folder: Path) -> None:
    """Raise ValueError for a file that a report would open later and must not."""
    check_evaluations(folder / EVALUATIONS)
    for table in (folder / "samples").glob("*.jsonl"):
        check_file(table, JSON_BYTES)


def check_evaluations(path: Path) -> None:
    """Raise ValueError unless the last line has one number per prompt for each metric."""
    check_file(path, LOG_BYTES)
    raw = next(lines_from_the_end(path), None) if path.exists() and path.stat().st_size else None
    if raw is None:
        return
    line = json.loads(raw)
    prompts, sources = line["prompts"], line["sources"]
    if {*map(type, prompts)} - {int} or {*map(type, sources)} - {str}:
        raise ValueError(f"{path.name} has prompts that are none")
    for name in line.keys() - {"iteration", "prompts", "sources"}:
        if np.array(line[name], dtype=np.float64).shape != (len(prompts),):
            raise ValueError(f"{path.name} has no number of {name} for each prompt")


def read(folder: Path) -> Run:
    """The run in a directory. Raises ValueError if it cannot be read as one."""
    try:
        config = read_config(folder / CONFIG)
        starts = json.loads(read_bytes(folder / MANIFEST, JSON_BYTES))["starts"]
        _check_kinds(config)
        found = Run(
            folder=folder,
            config=config,
            seed=int(config["seed"]),
            code=[_code(start["code"]) for start in starts],
            works=is_working(folder),  # before its logs: a run that ends meanwhile is complete
            logs={name: Log(folder / name) for name in (METRICS, TIMING)},
        )
        found.names()  # parses the lines from which names are read
        check_rest(folder)
        return found
    except UNREADABLE as error:
        raise ValueError(f"{folder} cannot be read as a run ({reason_of(error)})") from None


def read_all(folders: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """The runs that can be read, and a sentence for each of the others.

    Raises ValueError if none can.
    """
    found, left_out = [], []
    for folder in folders:
        try:
            found.append(read(folder))
        except ValueError as error:
            left_out.append(f"left out: {error}")
    if not found:
        raise ValueError("; ".join(left_out).removeprefix("left out: "))
    return found, left_out


def _check_kinds(config: Mapping[str, object]) -> None:
    int(config["iterations"])
    typed, choices = config.get("overrides", []), config.get("choices", {})
    if not (isinstance(typed, list) and all(isinstance(word, str) for word in typed)):
        raise ValueError(f"{CONFIG}: overrides must be a list of words")
    if not isinstance(choices, dict):
        raise ValueError(f"{CONFIG}: choices are a mapping")
