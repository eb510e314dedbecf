"""Programs of agents: processes in their own groups, which end with their episodes, or with the
trainer however it dies."""

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
GRACE = 2.0  # seconds for a program to end before it is killed
LAST_WORDS = 1.0  # seconds to read its output if a child process holds the pipe
FILES = 3  # descriptors per program: two output pipes and its connection
MOST_FILES = 1 << 16  # more would slow down programs that close all possible descriptors
PART = 1 << 16  # bytes
KEPT = 1 << 14  # bytes kept of the end of its output


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended, and its last output lines."""

    code: int
    printed: str  # by stdout
    complained: str  # by stderr


def raise_file_limit() -> int:
    """Raise the limit of descriptors to that of the system, and return it."""
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
    """End it and wait for it, since it would otherwise become a zombie."""
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
        """given: its stdin. `ended` is called once, in a thread. A program that cannot be watched
        is ended."""
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
        """Its exit code, after the rest of its group is killed and off the janitor's list."""
        self._signal(signal.SIGKILL)
        try:
            self.janitor.tell(f"-{self.process.pid}")
        finally:
            code = self._reap()
        return code

    def _reap(self) -> int:
        """Its exit code. No signal is sent afterwards, since the system may reuse its id."""
        with self.lock:
            self.is_reaped = True
            return self.process.wait()

    def _signal(self, number: int) -> None:
        with self.lock, contextlib.suppress(ProcessLookupError, PermissionError):
            if not self.is_reaped:
                os.killpg(self.process.pid, number)


class Tail:
    """The end of a pipe's output, which is read continuously so that writers never block."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self.pipe, self.end = pipe, b""
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        with self.pipe:
            while part := os.read(self.pipe.fileno(), PART):
                self.end = (self.end + part)[-KEPT:]

    def text(self) -> str:
        """The text, after the end of the output or the last wait."""
        self.thread.join(LAST_WORDS)
        return self.end.decode(errors="replace").rstrip()
