"""Addresses of engines as files in a folder that runs read: `rollout.engine.url=auto`."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tandem import distributed, processes

log = logging.getLogger(__name__)

AUTO = "auto"
PATTERN = "servers-*.json"
POLL = 0.5  # seconds between two checks
BEAT, STALE = 5.0, 60.0  # seconds between two touches of a file, and until it is ignored
JUDGES: list[Callable[[str], None]] = []  # of an address that was found; they raise ValueError


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressFile:
    """The servers of one `tandem engines`; several, on several nodes, share a folder."""

    folder: Path
    urls: Sequence[str]

    @property
    def path(self) -> Path:
        return self.folder / f"servers-{socket.gethostname()}-{os.getpid()}.json"

    def write(self, *, ready: bool, fault: str = "") -> None:
        """Write the file atomically. ready: whether all servers answer; fault: why none will."""
        self.folder.mkdir(parents=True, exist_ok=True)
        own = {"host": socket.gethostname(), "pid": os.getpid(), "parent": os.getppid()}
        said = own | {"urls": list(self.urls)}
        arriving = self.path.with_suffix(".new")
        try:
            arriving.write_text(json.dumps(said | {"ready": ready, "fault": fault}) + "\n")
            arriving.rename(self.path)
        finally:
            arriving.unlink(missing_ok=True)

    def touch(self) -> None:
        """Mark the file as current, unless that was done recently."""
        with suppress(FileNotFoundError):  # it was removed meanwhile
            if time.time() - self.path.stat().st_mtime > BEAT:
                os.utime(self.path)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


@contextmanager
def check_addresses(judge: Callable[[str], None]) -> Iterator[None]:
    """A context in which an address is accepted if `judge` does not raise."""
    JUDGES.append(judge)
    try:
        yield
    finally:
        JUDGES.remove(judge)


def find_urls(folder: Path, *, patience: float, own: bool = False) -> list[str]:
    """The addresses of all servers in a folder, once they all answer.

    own: only of those that this run starts. Raises ValueError if there are none, or not all are up,
    within `patience` seconds, if those of this run have ended, and for an address that a judge
    refuses.
    """
    urls = _wait_for_urls(folder, patience=patience, own=own)
    for url in urls:
        for judge in JUDGES:
            judge(url)
    return urls


def _wait_for_urls(folder: Path, *, patience: float, own: bool) -> list[str]:
    end, told = time.monotonic() + patience, False
    hint, remedy = _advise(folder, own=own)
    while True:
        found = [read(path) for path in sorted(folder.glob(PATTERN))]
        living = [file for file in found if file is not None and (not own or is_own(file))]
        if own and (faults := [file["fault"] for file in living if file["fault"]]):
            raise ValueError(f"rollout.engine.starts=true: the engines have ended: {faults[0]}")
        if living and all(file["ready"] for file in living):
            return [url for file in living for url in file["urls"]]
        if time.monotonic() > end:
            state = "are not up" if living else "have not written an address"
            raise ValueError(
                f"rollout.engine.url=auto: engines {state} in {folder} within "
                f"rollout.engine.patience={patience:g} s; {remedy}"
            )
        if not told:
            log.warning("waiting for engines: %s", hint)
            told = True
        time.sleep(POLL)


def _advise(folder: Path, *, own: bool) -> tuple[str, str]:
    """What to do while engines are awaited, and once the wait is over."""
    if own:
        logs = f"see {folder}/server-*.log"
        return logs, f"{logs}, or raise rollout.engine.patience"
    where = f"rollout.engine.folder={folder.absolute()}"  # the default may be a folder of one run
    start = f"start them with `tandem engines {where}` and the model and the rollout of this run"
    return f"tandem engines model=... gpus=... {where}", start


def read(path: Path) -> dict | None:
    """The content of an address file; None if its writer is dead or it is stale."""
    try:
        said, age = json.loads(path.read_text()), time.time() - path.stat().st_mtime
    except FileNotFoundError:  # just removed
        return None
    if said["host"] == socket.gethostname() and not processes.is_running(said["pid"]):
        path.unlink(missing_ok=True)
        return None
    if age > STALE:
        tell_stale(path)
        return None
    return said


@cache
def tell_stale(path: Path) -> None:
    """Warn once per file."""
    log.warning("%s is ignored: it was not updated for %.0f s", path, STALE)


def is_own(said: dict) -> bool:
    """Whether the first process of this run wrote it: this process, its parent, or a sibling."""
    if said["host"] != socket.gethostname():
        return False
    if distributed.is_first():
        return said["pid"] == os.getpid()
    return os.getppid() in (said["pid"], said.get("parent"))
