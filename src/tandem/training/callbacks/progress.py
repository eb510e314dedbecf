"""The progress bar of a run, and its closing table."""

from __future__ import annotations

import sys
import time

from lightning.pytorch import Callback, Trainer
from tqdm import tqdm

from tandem.evaluation.settings import Evaluation
from tandem.record.run_record import RunRecord
from tandem.record.summary import amount, clock, summary
from tandem.training.module import PostTraining

SHOWN = {
    "reward/mean": "reward",
    "eval/accuracy": "accuracy",
    "eval/reward": "held-out reward",
    "actor/entropy": "entropy",
}
QUIET = 10.0  # seconds between two lines where there is no terminal


class Progress(Callback):
    """A bar on a terminal, else a line now and then; the closing table."""

    def __init__(self, record: RunRecord, evaluation: Evaluation) -> None:
        self.record, self.evaluation = record, evaluation
        self.bar: tqdm | None = None

    def on_train_start(self, trainer: Trainer, module: PostTraining) -> None:
        self.spoke = self.began = time.monotonic()
        self.first = module.iteration
        if trainer.is_global_zero and sys.stderr.isatty():
            total = module.plan.iterations
            self.bar = tqdm(total=total, initial=self.first, unit="it", dynamic_ncols=True)

    def on_train_batch_end(self, trainer: Trainer, module: PostTraining, *_: object) -> None:
        if not trainer.is_global_zero:
            return
        if self.bar is not None:
            self.bar.set_postfix_str(self._numbers(module), refresh=False)
            self.bar.update()
        elif self._is_due(module):
            self.spoke = time.monotonic()
            print(self._line(module), flush=True)

    def on_train_end(self, trainer: Trainer, module: PostTraining) -> None:
        self._close()

    def on_exception(self, trainer: Trainer, module: PostTraining, exception: Exception) -> None:
        self._close()

    def on_fit_end(self, trainer: Trainer, module: PostTraining) -> None:
        if trainer.is_global_zero:
            print(summary(self.record.folder, warn=self.evaluation.warning), flush=True)

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def _is_due(self, module: PostTraining) -> bool:
        ends = module.iteration in (self.first + 1, module.plan.iterations)
        return ends or time.monotonic() - self.spoke > QUIET

    def _line(self, module: PostTraining) -> str:
        done, total = module.iteration, module.plan.iterations
        spent = time.monotonic() - self.began
        left = spent / (done - self.first) * (total - done)
        ahead = f"{clock(left)} left" if left else f"took {clock(spent)}"
        return f"{done:>{len(str(total))}}/{total}  {self._numbers(module)}  {ahead}"

    def _numbers(self, module: PostTraining) -> str:
        """Reward and accuracy as they were known last, and the speed.

        Where nothing is right or wrong, the reward of held-out prompts stands for their accuracy.
        """
        latest = dict(self.record.latest)
        if "eval/accuracy" in latest:
            latest.pop("eval/reward", None)
        known = {short: latest[name] for name, short in SHOWN.items() if name in latest}
        unit = module.policy.unit
        speed = f"{amount(latest[f'perf/{unit}_per_second'])} {unit}/s"
        return "  ".join([*(f"{short} {value:.3f}" for short, value in known.items()), speed])
