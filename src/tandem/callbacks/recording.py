"""The line of every iteration, and the best and worst samples of some."""

from __future__ import annotations

import resource
import sys
import time

import torch
from lightning.pytorch import Callback, Trainer

from tandem.module import PostTraining
from tandem.record.run_record import RunRecord
from tandem.record.tables import best_and_worst

TOTALS = ("time/total", "time/cpu")  # seconds, accumulated over the starts of a run


class Recording(Callback):
    """Writes what an iteration reports. Rank 0 alone has a record."""

    def __init__(self, *, record: RunRecord, samples_every: int | None, samples: int = 4) -> None:
        self.record, self.samples_every, self.samples = record, samples_every, samples

    def on_fit_start(self, trainer: Trainer, module: PostTraining) -> None:
        self.before = self.record.totals(TOTALS)
        self.began = self._clocks()
        if trainer.is_global_zero:
            self.record.open(module.iteration)

    def on_train_batch_start(self, trainer: Trainer, module: PostTraining, *_: object) -> None:
        # A line describes the weights it starts from, hence the samples that led to them.
        self.counters = self._counters(module)
        self.started = time.perf_counter()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def on_train_batch_end(self, trainer: Trainer, module: PostTraining, *_: object) -> None:
        if not trainer.is_global_zero:
            return
        iteration = module.iteration - 1
        seconds = time.perf_counter() - self.started - self.record.held.get("time/evaluate", 0.0)
        unit = module.policy.unit
        steps = module.steps_seen - self.counters[unit]
        phases = {f"time/{phase}": spent for phase, spent in module.clock.seconds.items()}
        timing = {**phases, "time/iteration": seconds, f"perf/{unit}_per_second": steps / seconds}
        self.record.write(iteration, {**self.counters, **module.report}, self._timed(timing))
        if self.samples_every and iteration % self.samples_every == 0 and module.scores.parts:
            describe = module.policy.describe_prompt
            rows = best_and_worst(
                module.rollout, module.scores, count=self.samples, describe=describe
            )
            self.record.samples(iteration, rows)

    def write_last(self, module: PostTraining) -> None:
        """The line after all iterations: what is held of the final evaluation, and the counters."""
        self.record.write(module.iteration, self._counters(module), self._timed({}))

    def on_exception(self, trainer: Trainer, module: PostTraining, exception: Exception) -> None:
        self._close(trainer)

    def teardown(self, trainer: Trainer, module: PostTraining, stage: str) -> None:
        self._close(trainer)

    def _close(self, trainer: Trainer) -> None:
        if trainer.is_global_zero:
            self.record.close()

    def _counters(self, module: PostTraining) -> dict[str, float]:
        return {"samples": module.samples_seen, module.policy.unit: module.steps_seen}

    def _timed(self, timing: dict[str, float]) -> dict[str, float]:
        spent = {name: now - self.began[name] for name, now in self._clocks().items()}
        totals = {name: self.before[name] + spent[name] for name in TOTALS}
        return {**timing, **totals, "perf/peak_memory_gib": peak_memory() / 2**30}

    def _clocks(self) -> dict[str, float]:
        return dict(zip(TOTALS, (time.perf_counter(), time.process_time()), strict=True))


def peak_memory() -> int:
    """Bytes: of the accelerator in this iteration, or of this process since it began."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    kilobytes = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilobytes
