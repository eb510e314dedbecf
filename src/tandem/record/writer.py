"""The single process that writes in a run directory, which run.lock names.

The operating system holds the lock: it ends with its process, whatever the cause, and a forked
process does not keep it. The content of the file is for people, and for machines that share files
without locks.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from tandem import processes
from tandem.record.foreign import JSON_BYTES, check_file

log = logging.getLogger(__name__)

LOCK = "run.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """The process that holds the lock, or held it last."""

    host: str
    pid: int
    began: str | None  # start of the process, from `read_start_ticks`: process ids are reused
    since: str
    inode: int | None = None  # of the lock file: a copy of the directory has another one
    namespace: str | None = None  # from `read_namespace`; None: unknown, so taken for this one

    def __post_init__(self) -> None:
        if type(self.pid) is not int or not 0 < self.pid < 2**31:  # a foreign run's lock has any
            raise ValueError(f"{LOCK}: {self.pid!r} is not the id of a process")

    @property
    def is_here(self) -> bool:
        """Whether it was started on this machine."""
        return self.host == socket.gethostname()

    @property
    def is_visible(self) -> bool:
        """Whether this process can see it: not from another machine or another container."""
        return self.is_here and self.namespace in (None, processes.read_namespace())

    @property
    def runs(self) -> bool:
        """Whether it still runs, if it is visible."""
        return processes.is_running(self.pid) and self.began == processes.read_start_ticks(self.pid)

    def wrote(self, file: IO[str]) -> bool:
        """Whether it wrote this file itself, not an original of which this is a copy."""
        return self.inode in (None, _inode(file))


def find_writer(folder: Path) -> Writer | None:
    """Who holds the lock of a run directory, or held it last; None: no process, as the file is
    removed when its process ends, unless that is killed. A lock copied on this machine has none.

    The lock itself is not tried: that would refuse a run that starts at this moment.
    """
    check_file(folder / LOCK, JSON_BYTES)
    try:
        with (folder / LOCK).open() as file:
            writer = _read(file)
            copied = writer is not None and writer.is_here and not writer.wrote(file)
    except FileNotFoundError:
        return None
    return None if copied else writer


@contextmanager
def claim_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a run directory.

    Raises ValueError if another process holds it. The lock of a dead process is taken over, with a
    warning.
    """
    was_there = folder.is_dir()
    folder.mkdir(parents=True, exist_ok=True)
    with _lock(folder / LOCK) as file:
        _write(file)
        try:
            yield
        finally:
            (folder / LOCK).unlink(missing_ok=True)
            if not was_there:
                _remove_if_empty(folder)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()  # fails, and the folder stays, if it has content


@contextmanager
def _lock(path: Path) -> Iterator[IO[str]]:
    while True:
        with path.open("a+") as file:
            held = _is_held(file)
            if not held and not _is_same(path, file):
                continue  # its holder has just removed it
            before = _read(file)
            if held or before is not None:
                _judge(file, before, held)
            yield file
            return


def _is_held(file: IO[str]) -> bool:
    """Try to take the lock; True: another process has it. False also without file locks."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    except OSError as error:
        log.warning(
            "%s cannot be locked (%s); a second writer would not be detected", file.name, error
        )
    return False


def _judge(file: IO[str], writer: Writer | None, held: bool) -> None:
    """Raise unless the lock is a copy or was left by a dead process, both of this machine."""
    path = Path(file.name)
    if writer is None:
        raise ValueError(f"{path.parent}: another process is starting to write there; wait for it")
    who = f"process {writer.pid} on {writer.host}, since {writer.since}"
    if writer.is_here and not held and not writer.wrote(file):
        log.warning("%s: its lock is a copy of that of %s; it is taken over", path.parent, who)
        return
    if held or (writer.is_here and writer.runs):
        raise ValueError(f"{path.parent} is written by {who}: one run directory has one writer")
    if not writer.is_here:
        raise ValueError(
            f"{path.parent} is or was written by {who}; whether it still runs cannot be checked "
            f"from this machine; if it does not, delete {path}"
        )
    log.warning("%s: %s, is dead; its lock is taken over", path.parent, who)


def _read(file: IO[str]) -> Writer | None:
    """The content of the lock; None: it is not written completely yet."""
    file.seek(0)
    try:
        return Writer(**json.load(file))
    except (ValueError, TypeError, RecursionError):
        return None


def _write(file: IO[str]) -> None:
    pid, since = os.getpid(), time.strftime("%Y-%m-%dT%H:%M:%S%z")
    own = Writer(
        host=socket.gethostname(),
        pid=pid,
        began=processes.read_start_ticks(pid),
        since=since,
        inode=_inode(file),
        namespace=processes.read_namespace(),
    )
    file.truncate(0)
    file.write(json.dumps(asdict(own)))
    file.flush()


def _inode(file: IO[str]) -> int:
    return os.fstat(file.fileno()).st_ino


def _is_same(path: Path, file: IO[str]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
