"""A sandbox for programs that the policy writes: a command that is named by the user, tried before
it is trusted, and given nothing of the trainer's."""

from __future__ import annotations

import json
import os
import queue
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from tandem.contracts import at_least, declare, positive, register_environment
from tandem.environments.program import KEPT, Ended, Janitor, Program
from tandem.environments.protocol import About
from tandem.environments.tools import BEGUN, CALL, Refused, Tools

HERE = "environment.world.command"
TRIAL = 30.0  # seconds of the trial at least: the first start of a container takes some
# What a program must not be able to do, tried one by one: it prints those that worked.
PROBE = """
import json, os, socket
def read(path):
    with open(path, "rb") as file:
        return file.read(1)
def reach(address):
    socket.create_connection(tuple(address), 2).close()
def write(path):
    with open(path, "r+b") as file:  # one that is there: a folder of the sandbox's own is not ours
        file.write(b"x")
done = []
for name, what, where in json.loads({tried!r}):
    try:
        {{"read": read, "reach": reach, "write": write}}[what](where)
        done.append(name)
    except Exception:
        pass
print(json.dumps(done))
"""


class Sandbox:
    """A command that reads a program by stdin and runs it walled off; each program is alone.

    It gets PATH and nothing else of the trainer's environment. After `timeout` seconds it is ended
    with all that it started.
    """

    def __init__(self, command: Sequence[str], *, timeout: float) -> None:
        if not command:
            raise ValueError("command=[]: give the words of a sandbox that reads Python by stdin")
        self.command, self.timeout = [str(word) for word in command], timeout
        self.janitor = Janitor()

    def run(self, program: str, *, timeout: float | None = None) -> Ended | None:
        """How a program ended; None: it was stopped."""
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
        """Raise ValueError for a command that runs no program, or does not wall it off."""
        with traps() as tried:
            program = PROBE.format(tried=json.dumps(tried))
            try:
                end = self.run(program, timeout=max(self.timeout, TRIAL))
            except OSError as error:
                raise ValueError(f"{HERE}: {error}") from None
        if end is None:
            raise ValueError(f"{HERE}: a program that tries its walls did not end")
        try:
            done = json.loads(end.printed)
        except ValueError:
            said = (end.complained or end.printed).rpartition("\n")[2][-200:]
            raise ValueError(f"{HERE} runs no Python that it reads by stdin: {said}") from None
        if done:
            raise ValueError(
                f"{HERE} is no sandbox: a program in it can {', '.join(done)}; see "
                "docs/howto/environment.md for commands that wall it off"
            )


@contextmanager
def traps() -> Iterator[list[tuple[str, str, object]]]:
    """What a program is to try: files of this user, this process, a server of this machine."""
    with ExitStack() as held:
        server = held.enter_context(socket.create_server(("127.0.0.1", 0)))
        tried: list[tuple[str, str, object]] = [
            ("reach servers of this machine", "reach", server.getsockname()),
            ("read the environment of the trainer", "read", f"/proc/{os.getpid()}/environ"),
        ]
        for folder in {tempfile.gettempdir(), str(Path.home()), str(Path.cwd())}:
            with suppress(OSError):  # nobody can write there
                file = held.enter_context(tempfile.NamedTemporaryFile(dir=folder, prefix=".trap"))
                tried.append((f"read files in {folder}", "read", file.name))
                tried.append((f"write files in {folder}", "write", file.name))
        yield tried


@register_environment("python")
@declare(judges_itself=True)
class PythonTools(Tools):
    """Tools with one more, `python`, which runs a program of the policy in a sandbox.

    `command` are the words of the sandbox; it is tried when the model is loaded, and refused if a
    program in it can read files or reach servers of this machine. Each program is run by itself,
    for up to `timeout` seconds, and the last 16 KiB that it prints are its answer. Memory and
    processes are the sandbox's to limit.
    """

    def __init__(
        self,
        *,
        command: Sequence[str],
        timeout: Annotated[float, positive] = 10.0,
        functions: Mapping[str, Callable] | None = None,
        calls: str = CALL,
        begun: str = BEGUN,
        cost: Annotated[float, at_least(0)] = 0.0,
    ) -> None:
        self.sandbox = Sandbox(command, timeout=timeout)
        every = {**(functions or {}), "python": self.python}
        super().__init__(every, calls=calls, begun=begun, cost=cost)

    def describe(self) -> About:
        check, slowest = self.sandbox.check, self.sandbox.timeout + 5.0
        return replace(super().describe(), check=check, slowest=slowest)

    def python(self, code: str) -> str:
        """Run a Python program and see what it prints. Nothing is kept from one to the next.

        Args:
            code: The program.
        """
        if "\0" in code:
            raise Refused("a program holds no null bytes")
        end = self.sandbox.run(code)
        if end is None:
            return f"stopped after {self.sandbox.timeout:g} s"
        said = "\n".join(part for part in (end.printed, end.complained) if part)
        if end.code:
            said = f"{said}\nended with code {end.code}".lstrip()
        return said[-KEPT:] or "printed nothing"
