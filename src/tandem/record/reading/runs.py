"""Runs as read from disk: configuration, seed and logs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandem.record.finished import ENDED_EARLY, SOLVED
from tandem.record.foreign import (
    JSON_BYTES,
    LOG_BYTES,
    UNREADABLE,
    UnreadableRun,
    check_file,
    parse_object,
    read_config,
)
from tandem.record.reading.codes import find_versions, name_code, read_codes
from tandem.record.reading.logs import LARGEST, MOST_ITERATIONS, Log, lines_from_the_end
from tandem.record.reading.states import State, is_working

CONFIG, MANIFEST, METRICS, TIMING = "config.yaml", "manifest.json", "metrics.jsonl", "timing.jsonl"
EVALUATIONS = "evaluations.jsonl"
MOST = {"seed": 2**63, "iterations": MOST_ITERATIONS}  # one more than a configuration may have
# Axes by the name a user gives: which log has it, under which names, the first one that a line has.
# Earlier versions recorded the time at the end of a line's iteration alone.
AXES = {
    "iterations": (METRICS, ("iteration",)),
    "samples": (METRICS, ("samples",)),
    "tokens": (METRICS, ("tokens", "steps")),  # of a flow: denoising steps
    "seconds": (TIMING, ("time/reached", "time/total")),
    "cpu_seconds": (TIMING, ("time/reached_cpu", "time/cpu")),
    "gpu_seconds": (TIMING, ("time/reached_gpu", "time/gpu")),
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
    plugins: Mapping[str, frozenset[str]]  # hashes under which the starts imported each
    works: bool | None  # whether a process was running it when it was read; None: see is_working
    logs: Mapping[str, Log]

    @property
    def iterations(self) -> int:
        """The last logged iteration."""
        lines = self.logs[METRICS].iterations
        return int(lines[-1]) if len(lines) else 0

    @property
    def is_finished(self) -> bool:
        log = self.logs[METRICS]
        last = log.iterations[-1:]
        early = any(np.isfinite(log.numbers(x, last)).any() for x in (SOLVED, ENDED_EARLY))
        return len(last) > 0 and (early or self.iterations >= self.config["iterations"])

    @property
    def state(self) -> State:
        """Whether it is running, finished, was stopped or died."""
        if self.is_finished:
            return "finished"
        return {True: "running", False: "died", None: "not finished"}[self.works]

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
            own = self.logs[log].numbers(name, iterations)
            found = np.where(np.isfinite(found), found, own)
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

    def find_outdated(self, metric: str) -> int | None:
        """The iteration of the score if a later line has null in its place; None: none has."""
        last = self.where(metric)[-1:].tolist()
        return last[0] if last and self.logs[METRICS].find_last(metric) > last[0] else None


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


def _below(place: Path) -> list[Path]:
    """Runs, one that died before its first line too, and closed folders, which `read` names."""
    closed: list[OSError] = []
    walk = os.walk(place, onerror=closed.append)
    found = [Path(home) for home, _, files in walk if {CONFIG, MANIFEST} <= {*files}]
    hidden = [Path(one.filename) for one in closed if isinstance(one, PermissionError)]
    return [*found, *(one for one in hidden if one.parent not in found)]


def check_rest(folder: Path) -> None:
    """Raise ValueError for a file that a report would open later and must not."""
    check_evaluations(folder / EVALUATIONS)
    for table in (folder / "samples").glob("*.jsonl"):
        check_file(table, JSON_BYTES)


def check_evaluations(path: Path) -> None:
    """Raise ValueError for a first or a last line that is no number of each prompt."""
    check_file(path, LOG_BYTES)
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("rb") as file:
        first = file.readline()
    for raw in (first, *islice(lines_from_the_end(path), 1)):
        if raw.endswith(b"\n"):
            read_evaluation(raw, path.name)


def read_evaluation(raw: bytes, where: str) -> dict[str, object]:
    """A line of evaluations. Raises ValueError if it is no number of each prompt."""
    line = parse_object(raw, f"a line of {where}", "iteration", "prompts", "sources")
    kinds = {"iteration": int, "prompts": list, "sources": list}
    wrong = [name for name, kind in kinds.items() if type(line[name]) is not kind]
    if wrong or {*map(type, line["prompts"])} - {int} or {*map(type, line["sources"])} - {str}:
        raise ValueError(f"{where}: {(*wrong, 'prompts or sources')[0]} of a line cannot be read")
    for name in line.keys() - kinds:
        _check_numbers(line[name], len(line["prompts"]), f"{where} has {name} that")
    return line


def _check_numbers(values: object, count: int, what: str) -> None:
    try:
        found = np.array(values, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"{what} is not a list of numbers") from None
    if found.shape != (count,):
        raise ValueError(f"{what} is not one number for each prompt")
    if (np.abs(found[np.isfinite(found)]) > LARGEST).any():
        raise ValueError(f"{what} is above {LARGEST:g}")


def read(folder: Path) -> Run:
    """The run in a directory. Raises UnreadableRun."""
    try:
        config = read_config(folder / CONFIG)
        starts = read_codes(folder / MANIFEST)
        _check_kinds(config)
        found = Run(
            folder=folder,
            config=config,
            seed=config["seed"],
            code=[name_code(one) for one in starts],
            plugins=find_versions(starts),
            works=is_working(folder),  # before its logs: a run that ends meanwhile is complete
            logs={name: Log(folder / name) for name in (METRICS, TIMING)},
        )
        found.names()  # parses the lines from which names are read
        check_rest(folder)
        return found
    except UNREADABLE as error:
        raise UnreadableRun(folder, error) from None


def read_all(folders: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """The runs that can be read, and a sentence for each of the others.

    Raises ValueError if none can.
    """
    found, left_out = [], []
    for folder in folders:
        try:
            found.append(read(folder))
        except UnreadableRun as error:
            left_out.append(f"left out: {error}")
    if not found:
        raise ValueError("; ".join(left_out).removeprefix("left out: "))
    return found, left_out


def _check_kinds(config: Mapping[str, object]) -> None:
    for key in ("seed", "iterations"):
        if key not in config:
            raise ValueError(f"{CONFIG} has no {key}")
        if type(config[key]) is not int or not 0 <= config[key] < MOST[key]:
            raise ValueError(f"{CONFIG}: {key} must be a whole number from 0 to {MOST[key] - 1:,}")
    if not _are_words(config.get("overrides", [])):
        raise ValueError(f"{CONFIG}: overrides must be a list of words")
    if not isinstance(config.get("choices", {}), dict):
        raise ValueError(f"{CONFIG}: choices must be a mapping")
    match config:
        case {"guards": {"judges": judges}} if not _are_words(judges or []):
            raise ValueError(f"{CONFIG}: guards.judges must be a list of names")


def _are_words(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)
