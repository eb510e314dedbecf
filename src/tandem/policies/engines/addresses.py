"""Addresses of engines as files in a folder that runs read: `rollout.engine.url=auto`."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

AUTO = "auto"
PATTERN = "servers-*.json"
POLL = 0.5  # seconds between two looks


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressFile:
    """The servers of one `tandem engines`; several, on several nodes, share a folder."""

    folder: Path
    urls: Sequence[str]

    @property
    def path(self) -> Path:
        return self.folder / f"servers-{socket.gethostname()}-{os.getpid()}.json"

    def write(self, *, ready: bool) -> None:
        """Whole, or not there. ready: whether all of them answer."""
        self.folder.mkdir(parents=True, exist_ok=True)
        said = {"host": socket.gethostname(), "pid": os.getpid(), "urls": list(self.urls)}
        arriving = self.path.with_suffix(".new")
        arriving.write_text(json.dumps(said | {"ready": ready}) + "\n")
        arriving.rename(self.path)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def find_urls(folder: Path, *, patience: float) -> list[str]:
    """The addresses of all servers in a folder, once they all answer.

    Raises ValueError where there are none, or they are not up, within `patience` seconds.
    """
    end, told = time.monotonic() + patience, False
    while True:
        found = [read(path) for path in sorted(folder.glob(PATTERN))]
        living = [file for file in found if file is not None]
        if living and all(file["ready"] for file in living):
            return [url for file in living for url in file["urls"]]
        if time.monotonic() > end:
            state = "are not up" if living else "have written no address"
            raise ValueError(
                f"rollout.engine.url=auto: engines {state} in {folder} within "
                f"rollout.engine.patience={patience:g} s; start them by `tandem engines` with the "
                "model, the rollout and the cache_dir of this run"
            )
        if not told:
            log.warning("waiting for engines in %s: tandem engines model=... gpus=...", folder)
            told = True
        time.sleep(POLL)


def read(path: Path) -> dict | None:
    """What a file says; None if its writer is no more, who may have left it behind."""
    try:
        said = json.loads(path.read_text())
    except FileNotFoundError:  # just removed
        return None
    if said["host"] == socket.gethostname() and not is_running(said["pid"]):
        path.unlink(missing_ok=True)
        return None
    return said


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True
