"""Evaluation during training: before the first iteration, every N, and after the last."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from lightning.pytorch import Callback, Trainer

from tandem import distributed, rng
from tandem.evaluation.evaluate import choose_held_out, evaluate
from tandem.evaluation.image_collapse import DISTANCE, REWARD
from tandem.evaluation.preference_accuracy import compare_pairs
from tandem.evaluation.reward_hacking import find_best, find_hacking
from tandem.evaluation.settings import Evaluation
from tandem.record import terminal
from tandem.record.checkpoint import list_published, newest_until
from tandem.record.run_record import CHECKPOINTS
from tandem.settings.guards import describe_counts
from tandem.stop import Stop
from tandem.training.callbacks.checkpoints import Checkpoints
from tandem.training.callbacks.interrupt import Interrupt
from tandem.training.callbacks.recording import Recording
from tandem.training.module import PostTraining
from tandem.types import Prompt

log = logging.getLogger(__name__)


class Evaluating(Callback):
    """Evaluates the weights at the start of an iteration, before they are trained further."""

    def __init__(
        self,
        *,
        recording: Recording,
        interrupt: Interrupt,
        checkpoints: Checkpoints,
        settings: Evaluation,
        prompts: Sequence[Prompt],
    ) -> None:
        self.recording, self.interrupt, self.settings = recording, interrupt, settings
        self.checkpoints = checkpoints
        self.prompts = choose_held_out(prompts, settings.prompts)

    def on_fit_start(self, trainer: Trainer, module: PostTraining) -> None:
        self._spare(trainer, module)  # for a resumed run
        if module.iteration >= module.plan.iterations:  # Lightning skips a loop without iterations
            self._finish(trainer, module)

    def on_train_batch_start(self, trainer: Trainer, module: PostTraining, *_: object) -> None:
        if self.settings.every and module.iteration % self.settings.every == 0:
            self.measure(trainer, module, full=module.iteration == 0)

    def on_train_end(self, trainer: Trainer, module: PostTraining) -> None:
        self._finish(trainer, module)

    def measure(self, trainer: Trainer, module: PostTraining, *, full: bool) -> None:
        """Evaluate on all ranks; the metrics are written with those of this iteration."""
        if not self.prompts:
            return
        start, key = time.perf_counter(), rng.key(module.plan.seed, "eval")
        with self._show_progress(trainer, module):
            found = evaluate(
                module.policy,
                module.rewards,
                self.prompts,
                self.settings,
                key=key,
                full=full,
                stop=partial(self._is_told_to_stop, module),
            )
        if found is None:
            self.interrupt.leave(trainer, module)
        if found.faults:
            said = describe_counts(found.faults)
            log.warning("evaluation %d: missing scores: %s", module.iteration, said)
        loss = module.algorithm.loss
        compared = compare_pairs(module.policy, loss, self.prompts, self.settings, key=key)
        module.policy.pop_timing()  # time/evaluate counts them; the iteration's begin here
        metrics = {**found.metrics, **compared}
        if trainer.is_global_zero:
            record = self.recording.record
            record.prompts(module.iteration, self.prompts, found.prompts)
            record.samples(module.iteration, found.rows)
            metrics |= self._drift(module.iteration, metrics, found.rows)
            record.hold(metrics, {"time/evaluate": time.perf_counter() - start})
        self._check_hacking(trainer, module)

    def _show_progress(self, trainer: Trainer, module: PostTraining) -> AbstractContextManager:
        if not trainer.is_global_zero:
            return nullcontext()
        at = f"{module.iteration} of {module.plan.iterations} iterations"
        return terminal.doing("evaluating", f"{len(self.prompts)} prompts, after {at}")

    def _is_told_to_stop(self, module: PostTraining) -> bool:
        """Whether to stop; asked between parts of an evaluation, which count as progress."""
        module.clock.tick()
        return self.interrupt()

    def _drift(
        self, iteration: int, metrics: Mapping[str, float], rows: Sequence[Mapping]
    ) -> dict[str, float]:
        """The drift of samples since the first evaluation; warns in the log of suspicious drift."""
        record = self.recording.record
        gone = record.distance_to_start(rows)
        found = {} if gone is None else {DISTANCE: gone}
        first = record.first(REWARD)
        warning = None if first is None else self.settings.warning(first, {**metrics, **found})
        if warning is not None:
            log.warning("evaluation %d: %s", iteration, warning)
        return found

    def _check_hacking(self, trainer: Trainer, module: PostTraining) -> None:
        """Test for reward hacking, a collective call if there is a judge. Raises Stop if the guard
        ends the run, after the metrics of this evaluation are written."""
        self._spare(trainer, module)
        guards, found = module.guards, None
        if not guards.judges or guards.hacking is None:
            return
        if trainer.is_global_zero:
            lines = self.recording.record.evaluations()
            found = find_hacking(lines, guards.judges, guards.hacking_patience)
        found = distributed.all_gather_object([found])[0]
        if found is None:
            return
        self.checkpoints.settle()
        said = f"{found}; {self._describe_checkpoint(found.since)}"
        try:
            guards.check_hacking(said, module.iteration)
        except Stop:
            self.recording.write_last(trainer, module, stopped=True)
            raise

    def _describe_checkpoint(self, step: int) -> str:
        folder = self.recording.record.folder / CHECKPOINTS
        path = newest_until(list_published(folder), step)
        if path is None:
            return "it fell from the start, before any checkpoint"
        return f"the checkpoint of then is {path}"

    def _spare(self, trainer: Trainer, module: PostTraining) -> None:
        """Keep the checkpoint at which each judge was highest, in addition to the newest ones."""
        if module.guards.judges and trainer.is_global_zero:
            lines = self.recording.record.evaluations()
            best = [find_best(lines, judge) for judge in module.guards.judges]
            self.checkpoints.spared = [line["iteration"] for line in best if line is not None]

    def _finish(self, trainer: Trainer, module: PostTraining) -> None:
        self.recording.reach(module)
        if self.settings.every:
            self.measure(trainer, module, full=True)
        self.recording.write_last(trainer, module)
