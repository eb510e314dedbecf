"""Worker processes for judges of text that may hang or that evaluate their input."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path

from tandem.rewards.concurrency import at_once

SCRIPT = Path(__file__).with_name("worker.py")
STARTUP = 120.0  # seconds: imports of a large library on a busy machine

Verdict = float | Exception | None  # None: the judge abstains; an exception says why none came


class Workers:
    """`count` processes, each started when it is first needed.

    A request that takes over `timeout` seconds is ended with its process, so it costs that long and
    nothing else; the next request starts another. POSIX only.
    """

    def __init__(self, judge: str, *, count: int, timeout: float) -> None:
        if count < 1 or timeout <= 0:
            raise ValueError(f"workers={count} and timeout={timeout} must be positive")
        self.workers = [Worker(judge, timeout) for _ in range(count)]
        self.idle: queue.LifoQueue[Worker] = queue.LifoQueue()  # the last one used is warm
        for worker in self.workers:
            self.idle.put(worker)

    def __call__(self, requests: Sequence[Mapping | None]) -> list[Verdict]:
        """One verdict per request, in their order; None where there is nothing to judge."""
        return at_once(len(self.workers), self._judge, [(request,) for request in requests])

    def _judge(self, request: Mapping | None) -> Verdict:
        if request is None:
            return None
        worker = self.idle.get()
        try:
            return worker.ask(request)
        except (TimeoutError, ChildProcessError) as error:
            worker.stop()
            return error
        finally:
            self.idle.put(worker)

    def close(self) -> None:
        for worker in self.workers:
            worker.stop()


class Worker:
    """One process of `worker.py`; every line that goes in comes back as one line."""

    def __init__(self, judge: str, timeout: float) -> None:
        self.judge = judge
        self.timeout = timeout
        self.process: subprocess.Popen | None = None

    def ask(self, request: Mapping) -> Verdict:
        """The verdict, which is an exception if the judge raised one.

        Raises TimeoutError or ChildProcessError: then the process must be stopped.
        """
        if self.process is None:
            self._start()
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise ChildProcessError("the judge died") from None
        answer = json.loads(self._line(self.timeout))
        return ChildProcessError(answer["fault"]) if "fault" in answer else answer["score"]

    def _start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(SCRIPT), self.judge, str(self.timeout)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the trainer, which ends its iteration first
        )
        self._line(STARTUP)

    def _line(self, seconds: float) -> bytes:
        if not wait([self.process.stdout], seconds):
            raise TimeoutError(f"no verdict within {seconds:g} s")
        line = self.process.stdout.readline()
        if not line:
            raise ChildProcessError("the judge died")
        return line

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None
