"""Programs of agents: processes in groups of their own, which end with their episodes, or with the
trainer whatever it dies of."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

JANITOR = Path(__file__).with_name("janitor.py")
GRACE = 2.0  # seconds that a program has to end before it is killed
LAST_WORDS = 1.0  # seconds in which what it said comes, though a child of it holds the pipe
FILES = 3  # descriptors of a program: what it says by two pipes, and its connection
MOST_FILES = 1 << 16  # more would slow down programs that close whatever may be open
PART = 1 << 16  # bytes
KEPT = 1 << 14  # bytes of the end of what it says


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended, and its last output lines."""

    code: int
    printed: str  # by stdout
    complained: str  # by stderr


def raise_file_limit() -> int:
    """The descriptors that this process may have, once its own limit is that of the system."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return MOST_FILES if soft == resource.RLIM_INFINITY else soft


class Janitor:
    """A process that kills the groups in its list once this one is gone."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen | None = None

    def tell(self, line: str) -> None:
        with self.lock, contextlib.suppress(BrokenPipeError):  # one that was killed helps nobody
            if self.process is None:
                self.process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(JANITOR)],
                    stdin=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C is for the trainer
                )
                weakref.finalize(self, _dismiss, self.process)
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()


def _dismiss(janitor: subprocess.Popen) -> None:
    """End it and wait for it, since a process nobody waits for becomes a zombie."""
    with contextlib.suppress(BrokenPipeError):
        janitor.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        janitor.wait(GRACE)


class Program:
    """One process and its descendants."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        given: bytes,
        environment: Mapping[str, str],
        janitor: Janitor,
        ended: Callable[[Ended], None],
    ) -> None:
        """given: what it reads by stdin. `ended` is called in a thread, once. What cannot be
        watched is not left running."""
        self.janitor = janitor
        with tempfile.TemporaryFile() as file:
            file.write(given)
            file.seek(0)
            self.process = subprocess.Popen(
                command,
                stdin=file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
        self.lock = threading.Lock()
        self.is_reaped = False  # its number may be that of another group by now
        self.exited = threading.Event()
        try:
            janitor.tell(f"+{self.process.pid}")
            said = Tail(self.process.stdout), Tail(self.process.stderr)
            threading.Thread(target=self._watch, args=(said, ended), daemon=True).start()
        except BaseException:
            self._end()
            raise

    def stop(self) -> None:
        """End it and its descendants."""
        if not self.exited.is_set():
            self._signal(signal.SIGTERM)
            self.exited.wait(GRACE)
        self._signal(signal.SIGKILL)
        self.exited.wait()

    def _watch(self, said: Sequence[Tail], ended: Callable[[Ended], None]) -> None:
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)  # it keeps its number
        self.exited.set()
        printed, complained = (tail.text() for tail in said)
        ended(Ended(code=self._end(), printed=printed, complained=complained))

    def _end(self) -> int:
        """Its code, once whatever is left of it is killed and off the janitor's list."""
        self._signal(signal.SIGKILL)
        try:
            self.janitor.tell(f"-{self.process.pid}")
        finally:
            code = self._reap()
        return code

    def _reap(self) -> int:
        """Its exit code. Nothing is signalled from here on, since the system may reuse its id."""
        with self.lock:
            self.is_reaped = True
            return self.process.wait()

    def _signal(self, number: int) -> None:
        with self.lock, contextlib.suppress(ProcessLookupError, PermissionError):
            if not self.is_reaped:
                os.killpg(self.process.pid, number)


class Tail:
    """The end of what comes by a pipe, which is read so that nobody waits to write."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self.pipe, self.end = pipe, b""
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        with self.pipe:
            while part := os.read(self.pipe.fileno(), PART):
                self.end = (self.end + part)[-KEPT:]

    def text(self) -> str:
        """Once all has come, or nothing more is waited for."""
        self.thread.join(LAST_WORDS)
        return self.end.decode(errors="replace").rstrip()
