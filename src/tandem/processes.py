"""Processes of this machine: which ids are in use, since when, and folders of one user's alone; and
the end of this one."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures.thread import _threads_queues as joined_threads
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from tandem.stop import INTERRUPTED, end_process, ignore_signals, list_heard, say_at_once

PROCESS, BOOT = "/proc/{pid}/stat", Path("/proc/sys/kernel/random/boot_id")
NAMESPACE = Path("/proc/self/ns/pid")
STARTED = 19  # index of the start time among the fields after the program's name
LEFT = 600.0  # seconds in which threads and children may finish once their command has ended
TOLD_LEFT = 5.0  # the same, of a command that was told to stop


def is_running(process: int) -> bool:
    """Whether this machine has a process of this id."""
    try:
        os.kill(process, 0)  # signal 0 only asks
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another user
        return True
    return True


def read_start_ticks(pid: int) -> str | None:
    """The boot id and the ticks at which a process started; None: the system gives neither, or the
    process has ended and nobody has waited for it."""
    try:
        fields = Path(PROCESS.format(pid=pid)).read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else f"{BOOT.read_text().strip()} {fields[STARTED]}"
    except OSError:
        return None


def read_namespace() -> str | None:
    """The PID namespace of this process, in which alone its id means it; None: the system has none.

    Containers of one machine may share host name and boot id, but not this.
    """
    try:
        return os.readlink(NAMESPACE)
    except OSError:
        return None


def is_private(folder: Path) -> bool:
    """Whether a folder, made if missing, belongs to this user and is closed to others."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        mode = read_own_mode(folder)
        return mode is not None and not mode & 0o077
    return True


def read_own_mode(folder: Path) -> int | None:
    """The mode of a folder of this user; None: a link, no folder, or another user's."""
    found = folder.lstat()
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return found.st_mode if own else None


@contextmanager
def end_in_time() -> Iterator[None]:
    """The command of this process.

    Python waits for threads and children that a reward left in calls that do not return. Here it
    does not wait for daemon threads, and at most LEFT seconds, or TOLD_LEFT, for others; then, or
    at a signal, the process ends with the exit code of its command.
    """
    code = 1  # of an exception
    try:
        yield
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        raise
    finally:
        for thread in [one for one in joined_threads if one.daemon]:
            del joined_threads[thread]  # those of executors are joined even so
        atexit.unregister(ignore_signals)  # which would outlast the wait for children
        for number in list_heard():
            signal.signal(number, lambda *_: _end_now(code))
        threading.Thread(target=_end_late, args=(code,), daemon=True).start()


def _end_late(code: int) -> None:
    time.sleep(TOLD_LEFT)
    if code != INTERRUPTED and (names := _list_left()):
        say_at_once(f"waiting up to {LEFT:g} s for {names}; Ctrl-C ends it")
        time.sleep(LEFT)
    if names := _list_left():  # else libraries are at work
        say_at_once(f"ended without {names}, which did not finish")
        _end_now(code)


def _list_left() -> str:
    """The names of threads and children that Python waits for as it ends."""
    others = [one for one in threading.enumerate() if one is not threading.main_thread()]
    left = [one for one in others if not one.daemon or one in joined_threads]
    return ", ".join(one.name for one in [*left, *multiprocessing.active_children()])


def _end_now(code: int) -> NoReturn:
    for child in multiprocessing.active_children():
        child.kill()
    with suppress(Exception):
        sys.stdout.flush()
    end_process(code)
