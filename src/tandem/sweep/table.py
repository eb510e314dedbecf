"""The table of a sweep: what ran, what was there already, what failed and why, what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tandem.compare.table import Table
from tandem.sweep.outcome import Job, jobs_of, read_plan

SAID = {
    "finished": "finished",
    "there already": "there already",
    "failed": "failed",
    "taken": "left out",
    "stopped": "stopped",
    "running": "running",
    "waiting": "waiting",
}
OPEN = ("failed", "stopped", "waiting")  # what the same command runs


def page(folder: Path, launch: str | None = None) -> str:
    """Markdown. `launch`: by which one to tell what ran from what was there already."""
    jobs = jobs_of(folder)
    words = [_word(job, launch) for job in jobs]
    counts = Counter(words)
    counted = ", ".join(f"{counts[word]} {SAID[word]}" for word in SAID if counts[word])
    metric = next((job.score[0] for job in jobs if job.score is not None), "score")
    table = Table(
        name="sweep",
        title=f"{folder.name}: {counted or 'nothing yet'}, of {len(jobs)} runs",
        columns=("run", "state", "seconds", metric, "why"),
        rows=[_row(job, SAID[word]) for job, word in zip(jobs, words, strict=True)],
        notes=_notes(folder, jobs),
    )
    return table.markdown()


def _word(job: Job, launch: str | None) -> str:
    before = launch is not None and job.start is not None and job.start.launch != launch
    return "there already" if job.state == "finished" and before else job.state


def _row(job: Job, said: str) -> Sequence[str]:
    seconds = "" if job.start is None else f"{job.start.seconds:.0f}"
    score = "" if job.score is None else f"{job.score[1]:.3f}"
    return job.name, said, seconds, score, job.reason or ""


def _notes(folder: Path, jobs: Sequence[Job]) -> list[str]:
    left = [job for job in jobs if job.state in OPEN]
    notes = [f"What a run printed is in {folder}/RUN/output.log."] if left else []
    if left:
        command = read_plan(folder)["command"]
        notes.append(f"The same command runs what is missing ({len(left)}):\n\n    {command}")
    if any(job.score is not None for job in jobs):
        notes.append(f"Which is better:\n\n    python -m tandem.compare {folder}")
    return notes
