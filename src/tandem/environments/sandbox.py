"""A sandbox for programs that the policy writes: a command of the user, whose isolation is tested
before use."""

from __future__ import annotations

import fcntl
import json
import os
import queue
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from tandem.contracts import at_least, declare, positive, register_environment
from tandem.environments.program import KEPT, Ended, Janitor, Program
from tandem.environments.protocol import About, Move, Said
from tandem.environments.tool_calls import Refused
from tandem.environments.tools import Tools, ToolUse
from tandem.types import Prompt

HERE = "environment.world.command"
TRIAL = 30.0  # seconds at least for the trial: a container starts slowly the first time
STOPPING = 5.0  # seconds to stop the last program of a move
SIOCGIFADDR = 0x8915  # asks Linux for the IPv4 address of a network interface
# Tries each action that the sandbox must prevent, and prints those that worked.
PROBE = """
import json, os, socket
def read(path):
    with open(path, "rb") as file:
        return file.read(1)
def reach(address):
    socket.create_connection(tuple(address), 2).close()
def write(path):
    with open(path, "r+b") as file:  # an existing file: the sandbox may write to folders of its own
        file.write(b"x")
def network(inside):
    assert any(name not in inside for _, name in socket.if_nameindex())
done = []
for name, what, where in json.loads({tried!r}):
    try:
        {{"read": read, "reach": reach, "write": write, "network": network}}[what](where)
        done.append(name)
    except Exception:
        pass
print(json.dumps(done))
"""


class Sandbox:
    """A command that reads a program from stdin and runs it isolated, in a process of its own.

    It inherits only PATH from the trainer's environment. After `timeout` seconds it is stopped
    with all its child processes.
    """

    def __init__(self, command: Sequence[str], *, timeout: float) -> None:
        if not command:
            raise ValueError(
                "command=[]: give the command of a sandbox that reads Python from stdin"
            )
        self.command, self.timeout = [str(word) for word in command], timeout
        self.janitor = Janitor()

    def run(self, program: str, *, timeout: float | None = None) -> Ended | None:
        """The exit code and the output of a program; None: it was stopped."""
        ends: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        process = Program(
            self.command,
            given=program.encode(),
            environment={name: os.environ[name] for name in ("PATH",) if name in os.environ},
            janitor=self.janitor,
            ended=ends.put,
        )
        try:
            return ends.get(timeout=self.timeout if timeout is None else timeout)
        except queue.Empty:
            process.stop()
            return None

    def check(self) -> None:
        """Raise ValueError for a command that runs no program, or does not isolate it."""
        with traps() as tried:
            program = PROBE.format(tried=json.dumps(tried))
            try:
                end = self.run(program, timeout=max(self.timeout, TRIAL))
            except OSError as error:
                raise ValueError(f"{HERE}: {error}") from None
        if end is None:
            raise ValueError(f"{HERE}: a program that tests the isolation did not end")
        try:
            done = json.loads(end.printed)
        except ValueError:
            said = (end.complained or end.printed).rpartition("\n")[2][-200:]
            raise ValueError(f"{HERE} does not run Python from stdin: {said}") from None
        if done:
            raise ValueError(
                f"{HERE} is not a sandbox: a program in it can {', '.join(done)}; see "
                "docs/howto/environment.md for commands that isolate it"
            )


@contextmanager
def traps() -> Iterator[list[tuple[str, str, object]]]:
    """Targets that a sandboxed program must not reach: networks, a server of this machine, the
    environment of this process, and world-readable files of this user."""
    with ExitStack() as held:
        server = held.enter_context(socket.create_server(("", 0)))
        port = server.getsockname()[1]
        tried: list[tuple[str, str, object]] = [
            ("use a network", "network", ["lo"]),
            ("read the environment of the trainer", "read", f"/proc/{os.getpid()}/environ"),
        ]
        for address in own_addresses():
            tried.append((f"reach servers of this machine at {address}", "reach", (address, port)))
        for folder in {tempfile.gettempdir(), str(Path.home()), str(Path.cwd())}:
            with suppress(OSError):  # the folder is not writable
                file = held.enter_context(tempfile.NamedTemporaryFile(dir=folder, prefix=".trap"))
                os.fchmod(file.fileno(), 0o644)  # the sandbox may run as another user
                tried.append((f"read files in {folder}", "read", file.name))
                tried.append((f"write files in {folder}", "write", file.name))
        yield tried


def own_addresses() -> list[str]:
    """The IPv4 addresses of this machine, the loopback one first."""
    found = ["127.0.0.1"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an address
                told = fcntl.ioctl(asking, SIOCGIFADDR, struct.pack("256s", name.encode()))
                found.append(socket.inet_ntoa(told[20:24]))
    return [*dict.fromkeys(found)]


class Programs:
    """The programs of one episode. Those of one move share the sandbox's `timeout`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.end = time.monotonic() + sandbox.timeout  # of the current move
        self.is_closed = False

    def python(self, code: str) -> str:
        """Run a Python program and see what it prints. Nothing is kept from one to the next.

        Args:
            code: The program.
        """
        if "\0" in code:
            raise Refused("a program must not contain null bytes")
        left = self.end - time.monotonic()
        over = f"out of time: the programs of one turn have {self.sandbox.timeout:g} s together"
        if self.is_closed or left <= 0:
            raise Refused(over)
        end = self.sandbox.run(code, timeout=left)
        if end is None:
            raise Refused(over)
        said = "\n".join(part for part in (end.printed, end.complained) if part)
        if end.code:
            said = f"{said}\nended with code {end.code}".lstrip()
        return said[-KEPT:] or "printed nothing"


@dataclass(slots=True, kw_only=True)
class ProgramUse:
    """An episode with tools, in which the programs of a move share one time limit."""

    use: ToolUse
    programs: Programs

    @property
    def opening(self) -> Said:
        return self.use.opening

    def act(self, move: Move) -> Said:
        self.programs.end = time.monotonic() + self.programs.sandbox.timeout
        return self.use.act(move)

    def close(self) -> None:
        """Start no more programs, even if a move is still running."""
        self.programs.is_closed = True
        self.use.close()


@register_environment("python")
@declare(judges_itself=True)
class PythonTools(Tools):
    """The given tools and `python`, which runs a program of the policy in a sandbox.

    `command` lists the words of the sandbox command; it is tested when the model is loaded, and
    refused if a program in it can read files of this machine, reach its servers or use a network.
    Programs share no state; those of one move share `timeout` seconds. The answer is the last
    16 KiB of output. The sandbox must limit memory and processes itself.
    """

    def __init__(
        self,
        *,
        command: Sequence[str],
        timeout: Annotated[float, positive] = 10.0,
        functions: Mapping[str, Callable | None] | None = None,
        calls: str | None = None,
        begun: str | None = None,
        cost: Annotated[float, at_least(0)] = 0.0,
    ) -> None:
        self.sandbox = Sandbox(command, timeout=timeout)
        every = {**(functions or {}), "python": partial(Programs, self.sandbox)}
        super().__init__(every, calls=calls, begun=begun, cost=cost)

    def describe(self) -> About:
        check, slowest = self.sandbox.check, self.sandbox.timeout + STOPPING
        return replace(super().describe(), check=check, slowest=slowest)

    def begin(self, prompt: Prompt, key: int) -> ProgramUse:
        use, programs = super().begin(prompt, key), Programs(self.sandbox)
        use.tools = {**use.tools, "python": programs.python}
        return ProgramUse(use=use, programs=programs)
