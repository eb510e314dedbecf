"""Table of a sweep: the state and the score of each run, reasons of failures, the next command."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tandem.compare.table import Table
from tandem.compare.text_table import fill, fit_table
from tandem.record.foreign import plain
from tandem.record.reading.runs import find, read_all
from tandem.sweep.status import Job, SweepPlan, read_jobs

SAID = {
    "finished": "finished",
    "there already": "already finished",
    "failed": "failed",
    "taken": "skipped",
    "stopped": "stopped",
    "running": "running",
    "waiting": "waiting",
}
OPEN = ("failed", "stopped", "waiting")  # repeating the command runs these


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSummary:
    """The states of the runs, the headline of their comparison, and the next commands."""

    table: Table
    notes: Sequence[str]

    def markdown(self) -> str:
        # A note of a table cannot hold the code blocks of commands.
        return "\n\n".join([self.table.markdown(), *self.notes])

    def text(self, width: int) -> str:
        """The summary for a terminal of `width` columns; commands are not wrapped."""
        lines = [line for note in self.notes for line in note.split("\n\n")]
        said = [plain(line) if line.startswith(" ") else fill(line, width) for line in lines]
        return "\n\n".join([fit_table(self.table, width), *said])


def summarise(folder: Path, plan: SweepPlan, launch: str | None = None) -> SweepSummary:
    """`launch`: the one whose runs are new; finished runs of others are "already finished"."""
    jobs = read_jobs(folder, plan)
    words = [_word(job, launch) for job in jobs]
    counts = Counter(words)
    counted = ", ".join(f"{counts[word]} {SAID[word]}" for word in SAID if counts[word])
    metrics = list(dict.fromkeys(job.score[0] for job in jobs if job.score)) or ["score"]
    table = Table(
        name="sweep",
        title=f"{folder.name}: {counted or 'nothing yet'}, of {len(jobs)} runs",
        columns=("run", "state", "seconds", *metrics, "why"),
        rows=[_row(job, SAID[word], metrics) for job, word in zip(jobs, words, strict=True)],
    )
    return SweepSummary(table=table, notes=_notes(folder, plan, jobs))


def _word(job: Job, launch: str | None) -> str:
    before = launch is not None and job.start is not None and job.start.launch != launch
    return "there already" if job.state == "finished" and before else job.state


def _row(job: Job, said: str, metrics: Sequence[str]) -> Sequence[str]:
    seconds = "" if job.start is None else f"{job.start.seconds:.0f}"
    scores = {} if job.score is None else {job.score[0]: f"{job.score[1]:.3f}"}
    return job.name, said, seconds, *(scores.get(x, "") for x in metrics), job.reason or ""


def _notes(folder: Path, plan: SweepPlan, jobs: Sequence[Job]) -> list[str]:
    left = {job.name for job in jobs if job.state in OPEN}
    notes = [f"The output of each run is in {folder}/RUN/output.log."] if left else []
    for command, names in plan.commands.items():
        missing = left - {*plan.jobs} if names is None else left & {*names}
        if missing:
            runs = f"Repeat the command to run what is missing ({len(missing)})"
            notes.append(f"{runs}:\n\n    {command}")
    if any(job.score is not None for job in jobs):
        notes += write_headlines(folder)
        words = ["python", "-m", "tandem", "compare", str(folder), "out=report"]
        notes.append(f"Full report:\n\n    {shlex.join(words)}")
    return notes


def write_headlines(folder: Path) -> list[str]:
    """The headlines of a comparison of the runs."""
    # These import torch, which takes seconds and which a sweep needs only here.
    from tandem.compare.comparison import Request, compare_scores
    from tandem.compare.headline import write_headline, write_next, write_warnings

    try:
        runs, _ = read_all(find([folder]))
        found = compare_scores(runs, Request())
    except ValueError as error:  # for example runs without a common metric
        return [f"No comparison: {error}"]
    sentence, *commands = write_next(found) or [""]
    following = [f"Next: {sentence}"] if sentence else []
    said = [write_headline(found), *write_warnings(found), *following]
    return [*said, *(f"    {command}" for command in commands)]
