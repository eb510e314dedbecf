"""One run of a sweep: the command line that one would type for it alone, in a process of its own.

What a run does to its process (an exception, a guard, a signal, too much memory) ends there.
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
from tandem.config.resume import list_confirmed
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

TOLD_EVERY = 30.0  # seconds between two lines of what a run is doing

# The whole of an exception in a run's log, and lines in the order in which they were written.
LOUD = {"HYDRA_FULL_ERROR": "1", "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The settings that all runs of a sweep share; plain, so that they travel to other machines."""

    id: str
    folder: str
    cwd: str
    program: str  # train.py
    shared: list[str]
    spelled: dict[str, str]  # key as Hydra is told it -> as it was typed
    jobs: int | None  # how many there are; None: nobody knows yet
    gpus: int | None  # of each run; None: all that it finds
    environment: dict[str, str] = field(default_factory=dict)  # what each run is told beside it

    @property
    def stop_file(self) -> Path:
        """It is there once the launch was asked to stop."""
        return Path(self.folder) / f".stop-{self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run, and where it stands in its launch."""

    launch: Launch
    number: int  # from 0
    own: Sequence[str]  # overrides that set it apart

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
    """Do what is left to do of the run that Hydra is at. Its score, if it has one by then."""
    hydra = HydraConfig.get()
    done = finish_job(make_task(hydra.overrides.task, int(hydra.job.num), launch))
    return None if done is None or done.score is None else done.score[1]


def make_task(lines: Sequence[str], number: int, launch: Launch) -> Task:
    """The run that Hydra's lines mean."""
    own = replace_words(launch.shared, [_restore_word(line, launch) for line in lines])
    return Task(launch=launch, number=number, own=own)


def _restore_word(line: str, launch: Launch) -> str:
    key, _, value = line.partition("=")
    return f"{launch.spelled[key.lstrip('+')]}={value}"


def finish_job(task: Task) -> Job | None:
    """The run as it stands when there is nothing more to do for it; None: it was not looked at."""
    if task.launch.stop_file.exists():
        return None
    with status.lock_folder(task.folder) as lock:
        if lock is None:
            task.say("another launch is running it")
            return None
        found = status.judge_job(task.folder, task.overrides, running=False)
        if found.state in ("finished", "taken"):
            task.say("there already" if found.state == "finished" else f"left out: {found.reason}")
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
    task.say("starts" if before is None else "goes on")
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
        code = _read_code(process)
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
    return os.environ | own | LOUD | share.environment


def list_words(task: Task) -> list[str]:
    """A run that left a record goes on; where it has no checkpoint it begins again."""
    if all((task.folder / name).is_file() for name in (CONFIG, MANIFEST)):
        return [f"resume={quote(task.folder)}", *list_confirmed(task.overrides)]
    places = {"run_dir": task.folder, "sweep_dir": Path(task.launch.folder)}
    own = [f"{key}={quote(folder)}" for key, folder in places.items()]
    return [*task.overrides, *own, "hydra.mode=RUN"]  # an experiment's file may say MULTIRUN


def wait_for(process: subprocess.Popen, task: Task) -> None:
    """Until it has ended, also if this process is told to end: the run keeps a checkpoint then."""
    try:
        with pass_signals_on(process, task.launch):
            if (
                task.launch.stop_file.exists()
            ):  # whoever wrote it may not have seen this process yet
                process.terminate()
            told(process, task)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
        with suppress(ProcessLookupError):  # ranks and workers that it left behind
            os.killpg(process.pid, signal.SIGKILL)


def told(process: subprocess.Popen, task: Task) -> None:
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
    """SIGTERM to a worker of the launcher is meant for the run; the launch has ways of its own."""
    in_main = threading.current_thread() is threading.main_thread()
    if launch.id.startswith(f"{_describe_process()}-") or not in_main:
        yield
        return
    # For good: Ctrl-C reaches all processes of a terminal, and the launch says what comes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _read_code(process: subprocess.Popen) -> int:
    """A run that was told to end before it could listen lost nothing either."""
    return INTERRUPTED if process.returncode == -signal.SIGTERM else process.returncode
