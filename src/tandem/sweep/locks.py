"""Locks on the files of a sweep, and what is said where the file system has none."""

from __future__ import annotations

import fcntl
import logging
from functools import cache
from typing import IO

log = logging.getLogger(__name__)


def try_lock(file: IO, *, without_locks: bool = True) -> bool:
    """Whether the lock was taken. It is held until every process that shares the file closes it.

    without_locks: the answer on a file system that has no locks, of which one warning tells.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        _warn_of_no_locks(error.strerror)
        return without_locks
    return True


@cache
def _warn_of_no_locks(reason: str) -> None:
    """Warn, once in a process."""
    log.warning("files cannot be locked (%s); start no second launch of these runs", reason)
