"""The status of each run of a sweep, read from the sweep's folder alone.

sweep.json              every command that was launched here, and its runs
sweep.lock              held while sweep.json is written
sweep.md                the table at the end of the last launch
seed=0/job.json         the last start of a run: its command line, its process, how it ended
seed=0/job.lock         held for as long as a process works in the folder
seed=0/output.log       what the run printed
seed=0/...              the run directory
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Literal

from tandem.config.binding import bind_call
from tandem.config.building import make
from tandem.record import durable
from tandem.record.finished import completed_iterations
from tandem.record.foreign import UNREADABLE, plain, read_object
from tandem.record.reading.logs import Log
from tandem.record.reading.planned import PLAN, read_planned
from tandem.record.reading.runs import METRICS
from tandem.record.reading.states import JOB, LOCK, is_locked
from tandem.record.secrets import scrub, scrub_words
from tandem.settings.renamed import present_overrides
from tandem.stop import INTERRUPTED
from tandem.sweep.locks import try_lock

PLAN_LOCK = "sweep.lock"
LOG = "output.log"
HEADLINES = ("eval/accuracy", "eval/reward")  # the first one that a run has
GLANCE = 0.5  # seconds, far more than a process needs to check a lock
# taken: its folder holds a run of another command line.
State = Literal["waiting", "running", "finished", "stopped", "failed", "taken"]
TO_COME = ("waiting", "running", "stopped")  # states of pending runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The last start of a run: `code` is None until its process has ended."""

    overrides: Sequence[str]
    launch: str  # id of the launch that started it
    number: int  # 1 for the first start
    host: str
    pid: int
    seconds: float  # of all starts
    code: int | None  # of its process; below 0 the signal that killed it
    reason: str | None  # why it did not finish; None: it did, or has not ended yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The current status of one run of a sweep."""

    name: str  # of its folder
    state: State
    start: Start | None  # None: it was never started
    score: tuple[str, float] | None  # name and last value of the first of HEADLINES that it has
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """The runs of one command, or of all that were launched in a folder."""

    commands: Mapping[str, Sequence[str] | None]  # -> names of its runs; None: a search
    jobs: Mapping[str, Sequence[str]]  # name of a run's folder -> its overrides

    @property
    def searches(self) -> bool:
        return None in self.commands.values()


def write_plan(folder: Path, command: str, jobs: Mapping[str, Sequence[str]] | None) -> SweepPlan:
    """Add a command to the plan of this folder, and return the plan of this command alone."""
    folder.mkdir(parents=True, exist_ok=True)
    own = SweepPlan(
        commands={scrub(command, os.environ): None if jobs is None else list(jobs)},
        jobs={name: scrub_overrides(job) for name, job in (jobs or {}).items()},
    )
    with (folder / PLAN_LOCK).open("a") as lock:
        with suppress(OSError):  # the file system has no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        whole = own if not (folder / PLAN).exists() else _add_plan(folder, read_plan(folder), own)
        durable.replace(folder / PLAN, json.dumps(asdict(whole), indent=1).encode())
    return own


def _add_plan(folder: Path, before: SweepPlan, own: SweepPlan) -> SweepPlan:
    """Both plans. A run that has started keeps the overrides that it was planned with."""
    begun = {name for name in before.jobs if (folder / name / JOB).exists()}
    new = {name: job for name, job in own.jobs.items() if name not in begun}
    return SweepPlan(commands={**before.commands, **own.commands}, jobs={**before.jobs, **new})


def read_plan(folder: Path) -> SweepPlan:
    """The plan of every command so far. Raises ValueError for a folder without a sweep."""
    try:
        read_planned(folder / PLAN)  # refuses names of other folders
        kept = read_object(folder / PLAN, "jobs", "commands")
        jobs = {name: present_overrides(words) for name, words in (kept.pop("jobs") or {}).items()}
        return make(bind_call(SweepPlan, kept | {"jobs": jobs}, PLAN, partial=False))
    except UNREADABLE as error:
        raise ValueError(
            f"{folder}: it has no readable {PLAN}; give the folder of a sweep"
        ) from error


def write_start(folder: Path, start: Start) -> None:
    """Write down the start of a run in its folder."""
    plain = asdict(start) | {"overrides": scrub_overrides(start.overrides)}
    durable.replace(folder / JOB, json.dumps(plain, indent=1).encode())


def read_start(folder: Path) -> Start | None:
    """The last start of a run, under present names of keys; None: it was never started.

    Raises ValueError for a file that holds something else.
    """
    path = folder / JOB
    if not path.is_file():
        return None
    try:
        kept = read_object(path, "overrides")
        own = kept | {"overrides": present_overrides(kept["overrides"])}
        return make(bind_call(Start, own, JOB, partial=False))
    except UNREADABLE as error:
        raise ValueError(
            plain(f"{path} is damaged; restore a complete copy, or remove {folder} to run it again")
        ) from error


def is_same_command(start: Start, overrides: Sequence[str]) -> bool:
    return sorted(start.overrides) == sorted(scrub_overrides(overrides))


def scrub_overrides(overrides: Sequence[str]) -> list[str]:
    return scrub_words(overrides, os.environ)


@contextmanager
def lock_folder(folder: Path) -> Iterator[IO | None]:
    """The locked file of a run's folder; None: another process holds the lock.

    A process that inherits the file holds the lock too, so a run that outlives its sweep keeps it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as file:
        if not try_lock(file):
            time.sleep(GLANCE)  # another process may only be checking the lock
        yield file if try_lock(file) else None


def read_jobs(folder: Path, plan: SweepPlan) -> list[Job]:
    """The planned jobs in order; for a search, those that were started."""
    planned = [read_job(folder / name, overrides) for name, overrides in plan.jobs.items()]
    if not plan.searches:
        return planned
    started = sorted(folder.glob(f"*/{JOB}"), key=lambda path: path.stat().st_ctime)
    return planned + [read_job(p.parent) for p in started if p.parent.name not in plan.jobs]


def read_job(folder: Path, overrides: Sequence[str] | None = None) -> Job:
    """The status of a run. `overrides`: those planned for it; None: any."""
    return judge_job(folder, overrides, running=is_locked(folder))


def judge_job(folder: Path, overrides: Sequence[str] | None, *, running: bool) -> Job:
    """The status of a run, for a caller that knows whether it is running. See `read_job`."""
    start = read_start(folder)
    state = _state(folder, start, overrides, running)
    reason = None if start is None else _explain(start, state)
    try:
        score = score_of(folder)
    except ValueError as error:  # a damaged log concerns this run alone
        score, reason = None, reason or plain(str(error))
    return Job(name=folder.name, state=state, start=start, score=score, reason=reason)


def _state(
    folder: Path, start: Start | None, overrides: Sequence[str] | None, running: bool
) -> State:
    if start is not None and overrides is not None and not is_same_command(start, overrides):
        return "taken"
    if running:
        return "running"
    if start is None:
        return "waiting"
    if start.code is None and _is_through(folder):
        return "finished"  # it outlived the sweep that would have recorded its exit code
    return {0: "finished", INTERRUPTED: "stopped", None: "stopped"}.get(start.code, "failed")


def _is_through(folder: Path) -> bool:
    """Whether a run without a recorded exit code is complete according to its own record."""
    with suppress(*UNREADABLE):  # a folder without a readable record
        return completed_iterations(folder) is not None
    return False


def _explain(start: Start, state: State) -> str | None:
    if state == "taken":
        return f"the folder holds another run: {' '.join(start.overrides)}; set another sweep_dir"
    if state == "stopped" and start.code is None:
        return "the sweep was killed during this run"
    return start.reason


def score_of(folder: Path) -> tuple[str, float] | None:
    """Name and last value of the first of HEADLINES that a run has; None: it has none yet.

    Raises ValueError for a damaged line.
    """
    log = Log(folder / METRICS)
    name = next((name for name in HEADLINES if len(log.where(name))), None)
    return None if name is None else (name, float(log.numbers(name, log.where(name)[-1:])[0]))
