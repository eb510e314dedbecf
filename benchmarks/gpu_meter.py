"""The resources of a run on its device: seconds and memory of every phase, and its waits."""

from __future__ import annotations

import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import torch
from lightning.pytorch import Callback, Trainer

from tandem.training.collect import Clock
from tandem.training.module import PostTraining

WARM_UP = 1  # uncounted iterations, in which kernels are loaded, chosen and compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class Lap:
    """One iteration."""

    seconds: dict[str, float]  # by phase; "step" is the whole
    peak: dict[str, int]  # peak bytes of tensors, by phase
    sampled: int  # steps: tokens, or random steps of pictures
    samples: int
    read: torch.Tensor  # [B] tokens per row of a training pass
    asked: dict[str, int]  # rows of a flow's network without gradient, by phase
    report: dict[str, float]


class SyncedClock(Clock):
    """A clock that waits for the device at both ends of a phase and records its peak memory."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device, self.peak, self.now = device, {}, ""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        synchronize(self.device)
        forget_peak(self.device)
        self.now = name
        with super().phase(name):
            yield
            synchronize(self.device)
        self.now = ""
        self.peak[name] = max(self.peak.get(name, 0), peak(self.device))


class Meter(Callback):
    """The measurements of every iteration of a run."""

    def __init__(self) -> None:
        self.laps: list[Lap] = []
        self.asked: Counter[str] = Counter()

    def count(self, rows: int) -> None:
        """Count the rows of a flow's network from now on."""
        if not torch.is_grad_enabled():
            self.asked[self.clock.now] += rows

    def on_train_start(self, trainer: Trainer, module: PostTraining) -> None:
        self.clock = module.clock = module.source.clock = SyncedClock(module.device)
        self.began = time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, module: PostTraining, *_: object) -> None:
        synchronize(module.device)
        rollout, now = module.rollout, time.perf_counter()
        self.laps.append(
            Lap(
                seconds={**self.clock.seconds, "step": now - self.began},
                peak=dict(self.clock.peak),
                sampled=int(rollout.length.sum()),
                samples=len(rollout.length),
                read=module.policy.row_cost(rollout).cpu(),
                asked=dict(self.asked),
                report=dict(module.report),
            )
        )
        self.asked.clear()
        self.clock.peak.clear()
        self.began = time.perf_counter()

    @property
    def counted_laps(self) -> list[Lap]:
        return self.laps[WARM_UP:]

    def seconds(self, *phases: str) -> float:
        """The median over iterations of the total of these phases."""
        return median(
            sum(lap.seconds.get(name, 0.0) for name in phases) for lap in self.counted_laps
        )

    def most(self, *phases: str) -> int:
        """Peak bytes of these phases over all iterations."""
        return max(lap.peak.get(name, 0) for lap in self.laps for name in phases)


def median_seconds(work: Callable[[], object], device: torch.device, *, rounds: int) -> float:
    """Median seconds of `work`, after a first call that does not count."""
    taken = []
    for _ in range(rounds + 1):
        synchronize(device)
        began = time.perf_counter()
        work()
        synchronize(device)
        taken.append(time.perf_counter() - began)
    return median(taken[1:])


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak(device: torch.device) -> int:
    """Bytes of tensors; 0 if the device does not count them."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


@contextmanager
def waits(device: torch.device) -> Iterator[Counter[str]]:
    """How often the program waits for the device, by file and line; filled when the block ends."""
    found: Counter[str] = Counter()
    if device.type != "cuda":
        yield found
        return
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waiting = [w for w in seen if re.search("synchronizing", str(w.message))]
    found.update(f"{w.filename.rpartition('/src/')[2]}:{w.lineno}" for w in waiting)
