"""One run of a sweep: the command line of a single run, in its own process.

An exception, a guard, a signal or an out-of-memory kill ends that process and no other.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from hydra.core.hydra_config import HydraConfig

from tandem.config.overrides import quote
from tandem.config.recorded_words import list_confirmed
from tandem.record.reading.runs import CONFIG, MANIFEST
from tandem.record.summary import format_seconds
from tandem.stop import INTERRUPTED
from tandem.sweep import gpus, status
from tandem.sweep.exit_reason import last_line, reason_of
from tandem.sweep.gpus import Share
from tandem.sweep.status import LOG, Job, Start
from tandem.sweep.swept_numbers import replace_words
from tandem.sweep.words import name_job

LAUNCH = "launch_of_a_sweep"  # the key of Hydra's configuration that holds the Launch

TOLD_EVERY = 30.0  # seconds between progress lines of a run

# Full tracebacks in a run's log, and lines in the order in which they were printed.
LOUD = {"HYDRA_FULL_ERROR": "1", "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The settings that all runs of a sweep share; plain values that can go to other machines."""

    id: str
    folder: str
    cwd: str
    program: str  # train.py
    shared: list[str]
    spelled: dict[str, str]  # key as given to Hydra -> as it was typed
    jobs: int | None  # number of runs; None: not known yet
    gpus: int | None  # of each run; None: all visible ones
    environment: dict[str, str] = field(default_factory=dict)  # additional variables of each run

    @property
    def stop_file(self) -> Path:
        """A file that exists once the launch was asked to stop."""
        return Path(self.folder) / f".stop-{self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run of a launch."""

    launch: Launch
    number: int  # in the launch, from 0
    own: Sequence[str]  # overrides of this run only

    @property
    def name(self) -> str:
        return name_job(self.own)

    @property
    def folder(self) -> Path:
        return Path(self.launch.folder) / self.name

    @property
    def overrides(self) -> list[str]:
        return [*self.launch.shared, *self.own]

    def say(self, text: str) -> None:
        print(f"{self.number + 1} of {self.launch.jobs or '?'}  {self.name}: {text}", flush=True)


def name_launch() -> str:
    """A unique name of a launch: one process may launch several sweeps."""
    return f"{_describe_process()}-{secrets.token_hex(4)}"


def _describe_process() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


def job(launch: Launch) -> float | None:
    """Start or continue Hydra's current run. Returns its score, or None without one."""
    hydra = HydraConfig.get()
    done = finish_job(make_task(hydra.overrides.task, int(hydra.job.num), launch))
    return None if done is None or done.score is None else done.score[1]


def make_task(lines: Sequence[str], number: int, launch: Launch) -> Task:
    """The run of Hydra's overrides."""
    own = replace_words(launch.shared, [restore_word(line, launch) for line in lines])
    return Task(launch=launch, number=number, own=own)


def restore_word(line: str, launch: Launch) -> str:
    """An override with its key as it was typed: Hydra is given another name for a group."""
    key, _, value = line.partition("=")
    return f"{launch.spelled[key.lstrip('+')]}={value}"


def finish_job(task: Task) -> Job | None:
    """Run a task unless it is finished, and return its status; None: the launch is stopping, or
    another launch is running it."""
    if task.launch.stop_file.exists():
        return None
    with status.lock_folder(task.folder) as lock:
        if lock is None:
            task.say("another launch is running it")
            return None
        found = status.judge_job(task.folder, task.overrides, running=False)
        if found.state in ("finished", "taken"):
            finished = found.state == "finished"
            task.say("already finished" if finished else f"skipped: {found.reason}")
            return found
        start_run(task, lock, found.start)
        done = status.judge_job(task.folder, task.overrides, running=False)
    task.say(describe_end(done))
    return done


def describe_end(done: Job) -> str:
    """finished in 71.2 s, eval/accuracy 0.720"""
    score = "" if done.score is None else f", {done.score[0]} {done.score[1]:.3f}"
    why = "" if done.reason is None else f": {done.reason}"
    return f"{done.state} in {format_seconds(done.start.seconds)}{score}{why}"


def start_run(task: Task, lock: IO, before: Start | None) -> None:
    """Start the run's process, and write down how it ended."""
    task.say("starts" if before is None else "continues")
    log = task.folder / LOG
    said_before = log.stat().st_size if log.exists() else 0
    began = time.monotonic()
    with gpus.share(task.number, task.launch.gpus) as share:
        process = start_process(task, share, lock)
    start = Start(
        overrides=task.overrides,
        launch=task.launch.id,
        number=1 if before is None else before.number + 1,
        host=socket.gethostname(),
        pid=process.pid,
        seconds=0.0 if before is None else before.seconds,
        code=None,
        reason=None,
    )
    status.write_start(task.folder, start)
    try:
        wait_for(process, task)
    finally:
        # A run that was stopped before it could handle signals was interrupted too.
        code = INTERRUPTED if process.returncode == -signal.SIGTERM else process.returncode
        said = log.read_bytes()[said_before:].decode(errors="replace")
        seconds = start.seconds + time.monotonic() - began
        end = replace(start, seconds=seconds, code=code, reason=reason_of(code, said))
        status.write_start(task.folder, end)


def start_process(task: Task, share: Share, lock: IO) -> subprocess.Popen:
    """Start the run in its own session, so that Ctrl-C on the sweep reaches it only once."""
    with (task.folder / LOG).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, task.launch.program, *list_words(task)],
            cwd=task.launch.cwd,
            env=make_environment(task, share),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=[file.fileno() for file in (lock, *share.held)],
        )


def make_environment(task: Task, share: Share) -> dict[str, str]:
    """The environment of a run: its devices, its threads, and what the launch passes on."""
    own = task.launch.environment
    return gpus.leave_tasks() | own | LOUD | share.environment


def list_words(task: Task) -> list[str]:
    """The arguments of a run. A recorded run resumes, or restarts if it has no checkpoint."""
    if all((task.folder / name).is_file() for name in (CONFIG, MANIFEST)):
        return [f"resume={quote(task.folder)}", *list_confirmed(task.overrides)]
    places = {"run_dir": task.folder, "sweep_dir": Path(task.launch.folder)}
    own = [f"{key}={quote(folder)}" for key, folder in places.items()]
    return [*task.overrides, *own, "hydra.mode=RUN"]  # an experiment's file may set MULTIRUN


def wait_for(process: subprocess.Popen, task: Task) -> None:
    """Wait until the run has ended. If this process is asked to stop, the run saves a checkpoint
    first."""
    try:
        with pass_signals_on(process, task.launch):
            # The launch may have written the file before it knew of this process.
            if task.launch.stop_file.exists():
                process.terminate()
            wait_and_report(process, task)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
        with suppress(ProcessLookupError):  # ends ranks and workers that the run left behind
            os.killpg(process.pid, signal.SIGKILL)


def wait_and_report(process: subprocess.Popen, task: Task) -> None:
    """Wait, and now and then repeat the last line of the run's log."""
    said = None
    while process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(TOLD_EVERY)
            return
        if (last := last_line(task.folder / LOG)) not in (None, said):
            task.say(last)
            said = last


@contextmanager
def pass_signals_on(process: subprocess.Popen, launch: Launch) -> Iterator[None]:
    """Forward SIGTERM from a worker of the launcher to its run; the launch itself handles its own
    signals."""
    in_main = threading.current_thread() is threading.main_thread()
    if launch.id.startswith(f"{_describe_process()}-") or not in_main:
        yield
        return
    # Permanently: Ctrl-C reaches all processes of a terminal, and the launch handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
