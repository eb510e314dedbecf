"""The progress bar of a run, and its final table."""

from __future__ import annotations

import time

from lightning.pytorch import Callback, Trainer

from tandem.evaluation.settings import Evaluation
from tandem.record import terminal
from tandem.record.run_record import RunRecord
from tandem.record.summary import format_count, format_seconds, summarise
from tandem.training.module import PostTraining

SHOWN = {
    "reward/mean": "reward",
    "eval/accuracy": "accuracy",
    "eval/reward": "held-out reward",
    "actor/entropy": "entropy",
}
QUIET = 10.0  # seconds between two lines without a terminal
KNOWN_PACE = 3  # iterations before the remaining time is estimated
SOLVED = "every sample of {} iterations has full reward; guards.no_signal sets how many end a run"
DOING = {"train": "training", "warm_start": "warm start"}


class Progress(Callback):
    """A bar on a terminal, else a line every ten seconds; and the final table."""

    def __init__(self, record: RunRecord, evaluation: Evaluation) -> None:
        self.record, self.evaluation = record, evaluation
        self.bar: terminal.Bar | None = None

    def on_train_start(self, trainer: Trainer, module: PostTraining) -> None:
        self.spoke = self.began = self.paced = time.monotonic()
        self.first = module.iteration
        if trainer.is_global_zero and terminal.is_terminal():
            total = module.plan.iterations
            self.bar = terminal.Bar(DOING[self.record.job], total=total, done=self.first)
            self.bar.open()

    def on_train_batch_end(self, trainer: Trainer, module: PostTraining, *_: object) -> None:
        if not trainer.is_global_zero:
            return
        if module.iteration == self.first + 1:  # the first includes an evaluation and set-up
            self.paced = time.monotonic()
        if self.bar is not None:
            self.bar.done, self.bar.numbers = module.iteration, self._numbers(module)
            self.bar.ahead = self._ahead(module)
        elif self._is_due(module):
            self.spoke = time.monotonic()
            terminal.say(self._line(module))

    def on_train_end(self, trainer: Trainer, module: PostTraining) -> None:
        self._close()

    def on_exception(self, trainer: Trainer, module: PostTraining, exception: Exception) -> None:
        self._close()

    def on_fit_end(self, trainer: Trainer, module: PostTraining) -> None:
        if trainer.is_global_zero and self.record.job == "train":
            if module.is_solved:
                terminal.say(terminal.line("solved", SOLVED.format(module.full_iterations)))
            terminal.say(summarise(self.record.folder, warn=self.evaluation.warning))

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def _is_due(self, module: PostTraining) -> bool:
        ends = module.iteration in (self.first + 1, module.plan.iterations)
        return ends or time.monotonic() - self.spoke > QUIET

    def _line(self, module: PostTraining) -> str:
        done, total = module.iteration, module.plan.iterations
        parts = (f"{done:>{len(str(total))}}/{total}", self._numbers(module), self._ahead(module))
        said, job = "  ".join(part for part in parts if part), self.record.job
        return said if job == "train" else terminal.line(DOING[job], said)

    def _ahead(self, module: PostTraining) -> str:
        """The remaining time, once the pace is known; the first iteration does not count."""
        done, total = module.iteration, module.plan.iterations
        if done >= total:
            return f"took {format_seconds(time.monotonic() - self.began)}"
        if (went := done - self.first) < KNOWN_PACE:
            return ""
        pace = (time.monotonic() - self.paced) / (went - 1)
        return f"{format_seconds(pace * (total - done))} left"

    def _numbers(self, module: PostTraining) -> str:
        """The latest reward and accuracy, and the speed.

        Without a notion of right answers, the held-out reward replaces the accuracy. Results of an
        evaluation are shown with the iteration of their weights.
        """
        latest, at = dict(self.record.latest), self.record.latest_at
        if "eval/accuracy" in latest:
            latest.pop("eval/reward", None)
        known = [
            f"{short} {latest[name]:.3f}"
            + (f" (at {at[name]})" if name.startswith("eval/") else "")
            for name, short in SHOWN.items()
            if name in latest
        ]
        unit = module.policy.unit
        return "  ".join([*known, f"{format_count(latest[f'perf/{unit}_per_second'])} {unit}/s"])
