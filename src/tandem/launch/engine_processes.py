"""Processes of engines: start, readiness, restarts, and a common end."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import os
import signal
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tandem.stop import EngineUnavailable

POLL = 0.5  # seconds between two checks of the servers
PROBE, PROBES = 2.0, 5.0  # seconds for an answer of a running server, and between two probes
SILENCE = 120.0  # seconds without an answer before a running server is restarted
GRACE = 20.0  # seconds for a server to end before it is killed
TAIL = 15  # lines of a log that are shown
PR_SET_PDEATHSIG = 1  # of Linux prctl: signal sent to a process whose parent dies
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # servers are on this machine


@dataclass(slots=True, kw_only=True)
class EngineProcess:
    """One server in its own session, so that its child processes end with it."""

    words: Sequence[str]
    environment: Mapping[str, str]
    url: str
    log: Path
    restarts: int = 0
    is_up: bool = False
    process: subprocess.Popen | None = None
    since: float = field(default_factory=time.monotonic)  # time of its start or its last answer
    probed: float = 0.0

    def start(self) -> None:
        """Start the server; its output is appended to its log."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.words,
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        self.since, self.is_up = time.monotonic(), False

    def port_is_taken(self) -> bool:
        where = urllib.parse.urlsplit(self.url)
        try:
            socket.create_connection((where.hostname, where.port), PROBE).close()
        except OSError:  # also a name without an address, which the server itself reports
            return False
        return True

    def answers(self) -> bool:
        try:
            with DIRECT.open(f"{self.url}/health", timeout=PROBE):
                return True
        except (OSError, http.client.HTTPException):  # the latter: it speaks no HTTP
            return False

    def signal(self, number: int) -> None:
        """Send a signal to all processes of its session."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def tail(self) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL:])


def _end_with_parent() -> None:
    """In the new process: end it even if the parent is killed."""
    if os.uname().sysname == "Linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass(slots=True, kw_only=True)
class Watcher:
    """Servers that are kept running."""

    servers: Sequence[EngineProcess]
    startup: float  # seconds until a server must answer
    restarts: int  # at most, per server
    say: Callable[[str], None]

    def start(self) -> None:
        """Start all servers. Raises EngineUnavailable if a port is taken: what answers there would
        pass for the server until that one ends."""
        for server in self.servers:
            if server.port_is_taken():
                raise EngineUnavailable(
                    f"{server.url}: another process listens on this port; give a free one with "
                    "port=, or port=0 for any"
                )
            server.start()

    @property
    def up(self) -> int:
        return sum(server.is_up for server in self.servers)

    def look(self) -> None:
        """Check every server once. Raises EngineUnavailable if one was restarted too often."""
        for place, server in enumerate(self.servers):
            fault = self._fault(server, f"server {place}")
            if fault:
                self._start_again(server, f"server {place} {fault}")

    def _fault(self, server: EngineProcess, name: str) -> str:
        """The fault of a server; "" if it runs or is still starting."""
        assert server.process is not None, "start() comes first"
        now = time.monotonic()
        if (code := server.process.poll()) is not None:
            return f"ended with code {code}"
        if now < server.probed + (PROBES if server.is_up else 0):
            return ""
        server.probed = now
        if server.answers():
            if not server.is_up:
                self.say(f"{name} is up after {now - server.since:.0f} s: {server.url}")
            server.is_up, server.since = True, now
            return ""
        limit = SILENCE if server.is_up else self.startup
        return f"did not answer for {limit:.0f} s" if now - server.since > limit else ""

    def _start_again(self, server: EngineProcess, what: str) -> None:
        server.signal(signal.SIGKILL)
        server.process.wait()
        if server.restarts == self.restarts:
            self.say(f"the end of {server.log}:\n{server.tail()}")
            raise EngineUnavailable(f"{what}, after {self.restarts} restarts; see {server.log}")
        server.restarts += 1
        self.say(f"{what}; started again ({server.restarts} of {self.restarts}); see {server.log}")
        server.start()

    def kill(self) -> None:
        """Kill all servers and their child processes."""
        for server in self.servers:
            server.signal(signal.SIGKILL)

    def stop(self) -> None:
        """End all servers and their child processes; those that take too long are killed."""
        for server in self.servers:
            server.signal(signal.SIGTERM)
        end = time.monotonic() + GRACE
        for server in self.servers:
            if server.process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    server.process.wait(max(end - time.monotonic(), 0))
            server.signal(signal.SIGKILL)  # the engine is a separate process
            if server.process is not None:
                server.process.wait()
