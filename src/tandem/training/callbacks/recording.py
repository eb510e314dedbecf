"""The record of a run: metrics of every iteration, and best and worst samples of some."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping

import torch
from lightning.pytorch import Callback, Trainer

from tandem import distributed
from tandem.evaluation.sample_tables import select_extremes
from tandem.record.finished import ENDED_EARLY, SOLVED
from tandem.record.run_record import RunRecord
from tandem.training.module import PostTraining

SAMPLES = 4  # best ones and as many worst ones
# Seconds at the end of a line's iteration, accumulated over the starts of a run -> the same at its
# beginning, where the weights that the line describes were reached.
TOTALS = {
    "time/total": "time/reached",
    "time/cpu": "time/reached_cpu",
    "time/gpu": "time/reached_gpu",
}


class Recording(Callback):
    """Writes the metrics of each iteration. Only rank 0 has a record."""

    def __init__(self, *, record: RunRecord, samples_every: int | None) -> None:
        self.record, self.samples_every = record, samples_every

    def on_fit_start(self, trainer: Trainer, module: PostTraining) -> None:
        self.before = self.record.totals([*TOTALS])
        self.gpus = 0 if module.device.type == "cpu" else trainer.world_size
        self.began = read_clocks()
        if trainer.is_global_zero:
            self.record.open(module.iteration)

    def on_train_batch_start(self, trainer: Trainer, module: PostTraining, *_: object) -> None:
        self.reach(module)
        if module.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(module.device)

    def reach(self, module: PostTraining) -> None:
        """Note the samples and the time that led to the present weights, before they are evaluated:
        a line describes them."""
        self.counters = {"samples": module.samples_seen, module.policy.unit: module.steps_seen}
        self.reached = read_clocks()

    def on_train_batch_end(self, trainer: Trainer, module: PostTraining, *_: object) -> None:
        totals = self._totals(module)
        if not trainer.is_global_zero:
            return
        iteration = module.iteration - 1
        seconds = (
            time.perf_counter()
            - self.reached[0]
            - self.record.pending_numbers.get("time/evaluate", 0.0)
        )
        unit = module.policy.unit
        steps = module.steps_seen - self.counters[unit]
        phases = {f"time/{phase}": spent for phase, spent in module.clock.seconds.items()}
        timing = {
            **phases,
            **module.source.timing,
            "time/iteration": seconds,
            f"perf/{unit}_per_second": steps / seconds,
        }
        if self.samples_every and iteration % self.samples_every == 0 and module.scores.all_parts:
            describe = module.policy.describe_prompt
            rows = select_extremes(module.rollout, module.scores, count=SAMPLES, describe=describe)
            self.record.samples(iteration, rows)
        self.record.write(iteration, {**self.counters, **module.report}, {**timing, **totals})

    def write_last(self, trainer: Trainer, module: PostTraining, *, stopped: bool = False) -> None:
        """Write the line after the last iteration: the final evaluation and the counters. A run
        that ended early is marked as finished, unless a guard stopped it.

        A collective call; rank 0 writes.
        """
        totals = self._totals(module)
        if trainer.is_global_zero:
            mark = {}
            if module.is_solved and not stopped:
                mark = {SOLVED: module.full_iterations}
            elif module.iteration < module.plan.iterations and not stopped:
                mark = {ENDED_EARLY: module.iteration}
            self.record.write(module.iteration, self.counters | mark, totals)

    def on_exception(self, trainer: Trainer, module: PostTraining, exception: Exception) -> None:
        self._close(trainer)

    def teardown(self, trainer: Trainer, module: PostTraining, stage: str) -> None:
        self._close(trainer)

    def _close(self, trainer: Trainer) -> None:
        if trainer.is_global_zero:
            self.record.close()

    def _totals(self, module: PostTraining) -> dict[str, float]:
        """Times of all starts of the run, until now and until the weights of this line were
        reached, over all ranks. A collective call."""
        (began, began_processor), moments = self.began, (read_clocks(), self.reached)
        own = [processor - began_processor for _, processor in moments]
        everywhere = distributed.all_sum(torch.tensor(own, dtype=torch.float64)).tolist()
        now, reached = (
            accumulate_times(self.before, seconds=at - began, processor=spent, gpus=self.gpus)
            for (at, _), spent in zip(moments, everywhere, strict=True)
        )
        renamed = {TOTALS[name]: spent for name, spent in reached.items()}
        return {**now, **renamed, "perf/peak_memory_gib": peak_memory(module.device) / 2**30}


def read_clocks() -> tuple[float, float]:
    """Seconds now: of the wall clock, and of all cores for this process."""
    return time.perf_counter(), time.process_time()


def accumulate_times(
    before: Mapping[str, float], *, seconds: float, processor: float, gpus: int
) -> dict[str, float]:
    """`before` plus the times of this start: seconds, CPU seconds of all cores, and seconds times
    devices of the trainer; without a device there is no such number."""
    spent = {"time/total": seconds, "time/cpu": processor, "time/gpu": gpus * seconds}
    totals = {name: before[name] + now for name, now in spent.items()}
    return {name: total for name, total in totals.items() if total or name != "time/gpu"}


def peak_memory(device: torch.device) -> int:
    """Peak bytes on a GPU in this iteration; elsewhere those of this process since it started."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    kilobytes = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilobytes
