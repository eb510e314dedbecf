"""The folder through which the weights of one run reach an engine."""

from __future__ import annotations

import fcntl
import re
import secrets
import shutil
import socket
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import IO

from tandem.policies.engines.protocol import Weights, run_of
from tandem.stop import EngineUnavailable

KEPT = 2  # fewest handovers that stay: the newest, and the one before it for diagnosis
SIGN = "weights of a run of tandem on"  # then the host; the run there holds a lock on the file
OWNER, OURS = "owner", re.compile(r"run-[0-9a-f]{8}")


class WeightStore:
    """Handovers as folders `run-RUN/VERSION`; a version is `RUN-NUMBER`.

    Each may be as large as the model, so a new one replaces an old one, and all are deleted when
    their process ends. The first handover of a later run on the host deletes the leftovers of a
    killed process, whose lock the kernel has released; folders of other hosts stay.
    """

    def __init__(self, folder: Path, *, memory: Path | None = None) -> None:
        """memory: used in place of the folder if it has room for all kept handovers and a new
        one."""
        self.folder, self.memory = folder, memory
        self.handovers: list[Path] = []  # oldest first
        self.kept = KEPT
        self.lock = threading.RLock()  # the engines of a fleet are handed the same concurrently

    def put(self, weights: Weights, version: str) -> Path:
        """Save a handover, whole or not at all, unless a process of the same run already has.

        Raises EngineUnavailable if nothing was saved: a server that loads an empty folder ends.
        """
        with self.lock:
            if not self.place(version).parent.is_dir():
                base = self.memory if self._memory_has_room(weights) else self.folder
                self._claim(base / self.place(version).parent.name)
            place = self.place(version)
            if not place.is_dir():
                self._save(weights, place)
            self.keep(version)
        return place

    def _memory_has_room(self, weights: Weights) -> bool:
        if self.memory is None:
            return False
        wanted = (self.kept + 1) * weights.nbytes
        return shutil.disk_usage(self.memory.parent).free > wanted

    def _save(self, weights: Weights, place: Path) -> None:
        arriving = place.parent / f"new-{secrets.token_hex(4)}"
        weights.save(arriving)
        if not any(arriving.glob("*.safetensors")):
            shutil.rmtree(arriving, ignore_errors=True)
            raise EngineUnavailable(
                f"{place}: no weights were saved for the engine; of several ranks only the "
                "first one saves them"
            )
        publish(arriving, place)

    def keep(self, version: str) -> None:
        """Add a handover of any process to the list, and delete all but the newest ones."""
        place = self.place(version)
        with self.lock:
            if place not in self.handovers:
                self.handovers.append(place)
            while len(self.handovers) > self.kept:
                shutil.rmtree(self.handovers.pop(0), ignore_errors=True)

    def place(self, version: str) -> Path:
        return self._home(version) / version

    def _home(self, version: str) -> Path:
        """The handover folder of the run; another process may have created it."""
        name = f"run-{run_of(version)}"
        in_memory = self.memory is not None and (self.memory / name).is_dir()
        return (self.memory if in_memory else self.folder) / name

    def _claim(self, home: Path) -> None:
        """Create and lock the folder in one step: an unlocked folder is abandoned."""
        home.parent.mkdir(parents=True, exist_ok=True)
        sweep(home.parent)
        arriving = home.parent / f"new-{secrets.token_hex(4)}"
        arriving.mkdir()
        file = (arriving / OWNER).open("w")
        file.write(f"{SIGN} {socket.gethostname()}\n")
        file.flush()
        try_lock(file)
        if publish(arriving, home):
            weakref.finalize(self, left, home, file)  # at the end of the process, too


def sweep(folder: Path) -> None:
    """Remove the folders of dead runs of this host, and nothing else."""
    for home in folder.iterdir():
        if not OURS.fullmatch(home.name) or home.is_symlink():
            continue
        with suppress(OSError), (home / OWNER).open("r+") as file:
            if file.read() == f"{SIGN} {socket.gethostname()}\n" and try_lock(file):
                shutil.rmtree(home, ignore_errors=True)


def try_lock(file: IO[str]) -> bool:
    """Try to take the lock. False: another process holds it, or the file system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def publish(arriving: Path, place: Path) -> bool:
    """Give a complete folder its name; False: another process did so first."""
    try:
        arriving.rename(place)
    except OSError:
        shutil.rmtree(arriving)
        if not place.is_dir():
            raise
        return False
    return True


def left(home: Path, file: IO[str]) -> None:
    """Delete a folder of the store, and release its lock."""
    shutil.rmtree(home, ignore_errors=True)
    file.close()
