"""Choice of a finished sweep's best configuration, by scores on eval prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tandem.compare import selection
from tandem.compare.selection import Selection
from tandem.config.recorded_words import split_key
from tandem.record.reading.runs import Run
from tandem.sweep import status
from tandem.sweep.status import Job, SweepPlan

OWN = ("seed", "run_dir", "sweep_dir", "sweep", "resume")  # keys that are not part of a choice


def list_whole_runs(sweep: Path) -> list[Job]:
    """All planned runs; [] if the folder has no plan.

    Raises ValueError while runs are pending: the best would be chosen among the fastest only.
    """
    if not (sweep / status.PLAN).is_file():
        return []
    plan = status.read_plan(sweep)
    jobs = status.read_jobs(sweep, plan)
    left = [job for job in jobs if job.state in status.TO_COME]
    if not left:
        return jobs
    states = Counter(job.state for job in left)
    counted = ", ".join(f"{count} {state}" for state, count in states.items())
    raise ValueError(
        f"{len(left)} of {len(jobs)} runs are pending ({counted}); first run the sweep's command: "
        f"{find_command(left[0], plan)}"
    )


def find_command(job: Job, plan: SweepPlan) -> str:
    """The last command that plans this run; for a run of a search, the search's command."""
    meaning = [
        command
        for command, names in plan.commands.items()
        if (job.name in names if names is not None else job.name not in plan.jobs)
    ]
    # No command plans the run if the command's sweep file has changed: the last one is given.
    return [*plan.commands, *meaning][-1]


def choose(sweep: Path, jobs: Sequence[Job], found: Sequence[Run], metric: str) -> Selection:
    """The best configuration of these runs, without fresh seeds yet."""
    scored, silent = selection.rank(found, metric)
    return Selection(
        metric=metric,
        candidates=[selection.candidate(one) for one in scored],
        silent=[*silent, *list_never_began(sweep, jobs, found)],
        overrides=list_shared(scored[0].variant.runs[0]),
        fresh=[],
    )


def list_never_began(sweep: Path, jobs: Sequence[Job], found: Sequence[Run]) -> list[str]:
    """Configurations of which no run left a record, named by the overrides that not all share."""
    begun = {run.folder.resolve() for run in found}
    of_jobs = {
        job.name: select_choices(job.start.overrides) for job in jobs if job.start is not None
    }
    of_begun = {of_jobs[job.name] for job in jobs if (sweep / job.name).resolve() in begun}
    without = dict.fromkeys(lines for lines in of_jobs.values() if lines not in of_begun)
    common = frozenset.intersection(*of_jobs.values()) if of_jobs else frozenset()
    return [", ".join(sorted(lines - common)) for lines in without]


def select_choices(overrides: Sequence[str]) -> frozenset[str]:
    """The overrides that define a configuration."""
    return frozenset(x for x in overrides if x.lstrip("+~").partition("=")[0] not in OWN)


def list_shared(run: Run) -> list[str]:
    """The recorded overrides of a run that define its configuration."""
    words = {str(line): split_key(str(line))[1] for line in run.config["overrides"]}
    hydras = ("hydra.", "hydra/")
    return [x for x, key in words.items() if key not in OWN and not key.startswith(hydras)]


def keep_choice(before: Selection | None, now: Selection, sweep: Path) -> Selection:
    """The current choice with the fresh seeds that the earlier selection holds.

    Raises ValueError if the earlier choice was another one: fresh scores must not affect it.
    """
    if before is None:
        return now
    if before.metric == now.metric and sorted(before.overrides) == sorted(now.overrides):
        return replace(now, asked_again=before.asked_again, fresh=before.fresh)
    raise ValueError(
        f"{sweep / selection.FILE} holds {before.best.name}, chosen by {before.metric}, but the "
        f"choice would now be {now.best.name} by {now.metric}; move the file away to choose again"
    )
