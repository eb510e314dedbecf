"""The best configuration of a sweep: its score when chosen, and the scores of fresh seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tandem.compare.scores import Scored, bounds_of, is_score, score_variant
from tandem.compare.statistics.intervals import estimate
from tandem.compare.table import Table
from tandem.compare.texts import format_interval, format_number
from tandem.record import durable
from tandem.record.foreign import UNREADABLE, plain, read_object, reason_of
from tandem.record.reading.logs import LARGEST
from tandem.record.reading.runs import Run
from tandem.record.reading.variants import group_runs

FILE = "selection.json"  # in the sweep's folder
SAID = "evaluation_test.log"  # in a run's directory: output of its test evaluation
ENDED = ("finished", "failed")  # states in which the numbers of a run are final


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One configuration of the sweep."""

    name: str
    mean: float  # over its seeds, of the metric at the end of training
    seeds: list[int]  # with a score
    without: list[int]  # that died before their first score
    outdated: list[str] = field(default_factory=list)  # scores from before a missing last value


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """One run of the chosen configuration with a seed that was not used to choose it."""

    seed: int
    folder: str
    state: str  # as in the table of a sweep
    eval: float | None  # the metric at the end of training; None: not reached
    test: float | None  # the metric on test prompts; None: not evaluated

    @property
    def is_testable(self) -> bool:
        """Whether the run got far enough for a test evaluation."""
        return self.state == "finished" or self.eval is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    metric: str
    candidates: list[Candidate]  # the best one first
    silent: list[str]  # configurations without any score
    overrides: list[str]  # of the best one, without its seed
    asked_again: str | None = None  # overlap of test prompts with others, a sentence
    fresh: list[Fresh]

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    @property
    def complete(self) -> bool:
        """Whether each fresh seed finished training and has a test score."""
        return all(run.state == "finished" and run.test is not None for run in self.fresh)

    @property
    def count(self) -> int:
        """k: the number of configurations compared."""
        return len(self.candidates) + len(self.silent)


def rank(runs: Sequence[Run], metric: str) -> tuple[list[Scored], list[str]]:
    """Configurations by their mean over seeds, best first; and those without any score.

    Raises ValueError if there is no best one.
    """
    if not is_score(metric):
        raise ValueError(f"metric={metric}: unknown whether higher is better; name another metric")
    every = group_runs(runs)
    if many := sorted({one.task for one in every if one.task}):
        raise ValueError(f"the best is defined within one task, not over {' and '.join(many)}")
    silent = [one.name for one in every if all(run.score(metric) is None for run in one.runs)]
    scored = [score_variant(one, metric) for one in every if one.name not in silent]
    if not scored:
        raise ValueError(f"no run has {metric}")
    return sorted(scored, key=lambda one: -one.estimate.mean), silent


def candidate(one: Scored) -> Candidate:
    seeds = [seed for seed in one.variant.seeds if seed not in one.without]
    return Candidate(
        name=one.variant.name,
        mean=one.estimate.mean,
        seeds=seeds,
        without=list(one.without),
        outdated=one.describe_outdated(),
    )


def write(folder: Path, found: Selection) -> None:
    durable.replace(folder / FILE, json.dumps(asdict(found), indent=1).encode())


def read(folder: Path) -> Selection | None:
    """The selection of a sweep; None if there is none."""
    if not (folder / FILE).is_file():
        return None
    try:
        found = Selection(**read_object(folder / FILE, "metric", "candidates", "fresh"))
        candidates = [Candidate(**one) for one in found.candidates]
        fresh = [Fresh(**one) for one in found.fresh]
        _check_numbers([one.mean for one in candidates])
        _check_numbers([x for run in fresh for x in (run.eval, run.test) if x is not None])
        found = replace(found, candidates=candidates, fresh=fresh)
        table(found)  # reads every field
        return found
    except UNREADABLE as error:
        raise ValueError(f"{folder / FILE} cannot be read ({reason_of(error)})") from None


def _check_numbers(found: Sequence[object]) -> None:
    """Raise ValueError for what is no finite number, or too large to compute with."""
    for x in found:
        if type(x) not in (int, float) or not abs(x) <= LARGEST:
            raise ValueError("a score is not a number, or too large")


def tables_of(places: Iterable[str]) -> tuple[list[Table], list[str]]:
    """The selection tables of the sweeps among these places, each with a name of its own, and why
    some cannot be shown."""
    made, left_out = [], []
    for place in map(Path, places):
        try:
            if (found := read(place)) is not None:
                name = f"selection_{len(made) + 1}" if made else "selection"
                made.append(replace(table(found), name=name))
        except ValueError as error:  # the runs can be compared without it
            left_out.append(plain(f"left out: {error}"))
    return made, left_out


def table(found: Selection) -> Table:
    """The score used for the choice, and the scores that were not used for it."""
    test = found.metric.replace("eval/", "test/", 1)
    on_eval = [run.eval for run in found.fresh if run.eval is not None]
    on_test = [run.test for run in found.fresh if run.test is not None]
    chosen = (str(len(found.best.seeds)), format_number(found.best.mean), "-")
    return Table(
        name="selection",
        title=f"best of k = {found.count} by {found.metric}: {found.best.name}",
        columns=("score", "n", "mean", "95 %"),
        rows=[
            (f"{found.metric} when chosen", *chosen),
            (f"{found.metric} of fresh seeds", *_row(on_eval, found.metric)),
            (f"{test} of fresh seeds", *_row(on_test, test)),
        ],
        notes=[note for note in _notes(found) if note],
    )


def _row(scores: Sequence[float], metric: str) -> tuple[str, str, str]:
    if not scores:
        return "0", "-", "-"
    found = estimate(scores, bounds_of(metric))
    return str(found.n), format_number(found.mean), format_interval(found.low, found.high)


def _notes(found: Selection) -> Iterable[str | None]:
    yield (
        "The first line was used for the choice, so it is too high on average; report the last "
        "line."
    )
    for said in found.best.outdated:
        yield f"When chosen, {said}."
    if len(found.candidates) > 1:
        second = found.candidates[1]
        ahead = format_number(found.best.mean - second.mean)
        yield f"Ahead of {second.name} by {ahead} when chosen, n = {len(second.seeds)}."
    if failed := [run for run in found.fresh if run.state == "failed"]:
        silent = sum(run.eval is None for run in failed)
        yield (
            f"Fresh seeds that failed: {', '.join(str(run.seed) for run in failed)}; each counts "
            f"with its last score, {silent} had none."
        )
    for run in found.fresh:
        if run.state not in ENDED:
            yield f"Seed {run.seed} is not counted, it is {run.state}: {run.folder}."
        elif run.is_testable and run.test is None:
            yield f"Seed {run.seed} has no test score: see {run.folder}/{SAID}."
    yield found.asked_again
