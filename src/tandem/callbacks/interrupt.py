"""Ctrl-C and SIGTERM end a run at the next moment from which it can go on."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import NoReturn

from lightning.pytorch import Callback, Trainer

from tandem.callbacks.checkpoints import Checkpoints
from tandem.module import PostTraining
from tandem.stop import INTERRUPTED

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(SystemExit):
    """A run was asked to end, has published a checkpoint, and ends with a code of its own."""

    def __init__(self) -> None:
        super().__init__(INTERRUPTED)


class Interrupt(Callback):
    """Remembers a signal until the running iteration is over; called, it says whether one came."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, signal.Handlers] = {}

    def __call__(self) -> bool:
        return self.received is not None

    def on_train_start(self, trainer: Trainer, module: PostTraining) -> None:
        # After Lightning's own handler for SIGTERM, which ends a run without a checkpoint.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._remember) for number in SIGNALS}

    def on_train_batch_end(self, trainer: Trainer, module: PostTraining, *_: object) -> None:
        if trainer.strategy.reduce_boolean_decision(self(), all=False):
            self.leave(trainer, module)

    def on_train_end(self, trainer: Trainer, module: PostTraining) -> None:
        self._restore()

    def on_exception(self, trainer: Trainer, module: PostTraining, exception: Exception) -> None:
        self._restore()

    def leave(self, trainer: Trainer, module: PostTraining) -> NoReturn:
        """Publish a checkpoint on all ranks and end the process."""
        self.checkpoints.publish(trainer, module)
        if trainer.is_global_zero:
            _say(
                f"stopped after iteration {module.iteration} of {module.plan.iterations}; "
                f"go on with: python train.py resume={self.checkpoints.record.folder}"
            )
        raise Interrupted

    def _remember(self, number: int, frame: FrameType | None) -> None:
        first = self.received is None
        self.received = signal.Signals(number)
        if first:
            _say(f"{self.received.name}: ending after this iteration, with a checkpoint")

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


def _say(text: str) -> None:
    # Not print: a signal may come in the middle of one, and printing does not nest.
    os.write(2, f"\n{text}\n".encode())
