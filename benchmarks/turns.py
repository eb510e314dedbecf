"""Turns of several programs on one machine: each waits while another one is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Lap:
    """The measurements of one turn."""

    wall: float  # seconds
    cpu: float  # seconds, of all threads of the process
    peak: int  # bytes, of the process since it was loaded
    tokens: int = 0  # sampled in this turn
    sampling: float = 0.0  # CPU seconds of sampling, if the program reports them
    flops: float = 0.0  # of its matrix products, likewise
    rows: Mapping[str, int] = field(default_factory=dict)  # of its networks, likewise


class Turns:
    """The side of a program that is measured: `wait`, `start`, work, `stop`, `finish`; again."""

    def __init__(self, connection: Connection) -> None:
        """Everything is loaded, and the first turn can start."""
        self.connection = connection
        forget_peak()
        self.connection.send(memory("VmRSS"))

    def wait(self) -> None:
        """Until it is this program's turn."""
        self.connection.recv()

    def start(self) -> None:
        self.began = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        """Stop measuring."""
        ended = time.perf_counter(), time.process_time()
        self.took = ended[0] - self.began[0], ended[1] - self.began[1], memory("VmHWM")

    def finish(self, **told: object) -> None:
        """Let the next program begin. `told`: the other fields of the lap."""
        wall, cpu, peak = self.took
        self.connection.send(Lap(wall=wall, cpu=cpu, peak=peak, **told))


class Runner:
    """The side that gives turns to one program, in its own process."""

    def __init__(self, program: Callable[..., None], *arguments: object) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=program, args=(theirs, *arguments))
        self.process.start()
        theirs.close()
        self.loaded: int = self.connection.recv()  # bytes before the first turn
        self.laps: list[Lap] = []

    def turn(self) -> None:
        self.connection.send("go")
        self.laps.append(self.connection.recv())

    def close(self) -> None:
        """End the program, if it still waits for a turn."""
        self.connection.close()
        self.process.join()

    def summary(self, *, warm_up: int) -> dict[str, float]:
        """Medians over the turns after the first `warm_up`; memory in MiB."""
        laps = self.laps[warm_up:]
        peak = self.laps[-1].peak
        return {
            "wall_s": median(lap.wall for lap in laps),
            "cpu_s": median(lap.cpu for lap in laps),
            "peak_mib": peak / 2**20,
            "peak_above_loaded_mib": (peak - self.loaded) / 2**20,
            "tokens": median(lap.tokens for lap in laps),
            "sampling_cpu_s": median(lap.sampling for lap in laps),
            "flops": max(lap.flops for lap in self.laps),
        }


def memory(field: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM the peak since `forget_peak`. Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")
