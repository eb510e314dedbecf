"""Processes of this machine: which ids are in use, since when, and folders of one user's alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

PROCESS, BOOT = "/proc/{pid}/stat", Path("/proc/sys/kernel/random/boot_id")
NAMESPACE = Path("/proc/self/ns/pid")
STARTED = 19  # index of the start time among the fields after the program's name


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
