"""Signals that end a run at a point from which it can be resumed; a second one ends it at once.

Ctrl-C and SIGHUP let the iteration end. SIGTERM and SIGUSR1, which a cluster sends for preemption,
end it between two micro-batches, or on one rank between two parts of its samples.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

import torch
from lightning.pytorch import Callback, Trainer

from tandem import distributed
from tandem.record.checkpoint import find_newest_step
from tandem.stop import (
    INTERRUPTED,
    LEFT_TO_RUN,
    Abandoned,
    end_process,
    list_heard,
    say_at_once,
)
from tandem.threads import ENDING
from tandem.training.callbacks.checkpoints import FOLDER, Checkpoints
from tandem.training.module import PostTraining

URGENT = (signal.SIGTERM, signal.SIGUSR1)
# Seconds after the first signal in which others count as the same one: a terminal sends it to every
# process, and a launcher passes it on.
REPEATED = 1.0


class Ear:
    """Distinguishes a second signal from a first one delivered twice."""

    def __init__(self) -> None:
        self.first: float | None = None

    def hears_again(self) -> bool:
        now = time.monotonic()
        if self.first is None:
            self.first = now
        return now - self.first > REPEATED


class Pipe:
    """Calls `hear(number)` in a thread as soon as Python receives a signal.

    Python runs its own handlers in the main thread, which must first return from C code.
    """

    def __init__(self, hear: Callable[[int], None]) -> None:
        self.hear = hear
        self.end, self.start = os.pipe()
        os.set_blocking(self.start, False)
        self.before = signal.set_wakeup_fd(self.start, warn_on_full_buffer=False)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while number := os.read(self.end, 1):
            self.hear(number[0])
        os.close(self.end)

    def close(self) -> None:
        """End the thread once it has read everything written."""
        signal.set_wakeup_fd(self.before)
        os.close(self.start)


class Interrupted(SystemExit):
    """The run was asked to end, saved a checkpoint, and exits with its own code."""

    def __init__(self) -> None:
        super().__init__(INTERRUPTED)


class Interrupt(Callback):
    """Remembers a signal until the current iteration ends; a call returns whether one came.

    A second one ends the process at once, even if the main thread hangs: saved checkpoints stay,
    and the iterations since then are repeated on resume.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self.received: signal.Signals | None = None
        self._noting = threading.RLock()
        self._before: dict[signal.Signals, signal.Handlers] = {}

    def __call__(self) -> bool:
        return self.received is not None

    def on_train_start(self, trainer: Trainer, module: PostTraining) -> None:
        # After Lightning installs its SIGTERM handler, which ends a run without a checkpoint.
        if threading.current_thread() is not threading.main_thread():
            return
        self.trainer = trainer
        self._in_main, self._beside = Ear(), Ear()
        self._clock = module.clock  # before a signal can arrive, whose handler reads both
        self._leave = lambda together: self._leave_early(trainer, module, together)
        for number in list_heard():
            self._before[number] = signal.signal(number, self._hear)
        LEFT_TO_RUN.update(self._before.keys() - {*URGENT})
        self._pipe = Pipe(lambda number: self._note(number, self._beside))
        if distributed.world_size() > 1:  # any rank may receive the signal
            module.clock.between = self._leave

    def on_train_batch_end(self, trainer: Trainer, module: PostTraining, *_: object) -> None:
        if trainer.strategy.reduce_boolean_decision(self(), all=False):
            self.leave(trainer, module)

    def on_train_end(self, trainer: Trainer, module: PostTraining) -> None:
        self._restore()

    def on_exception(self, trainer: Trainer, module: PostTraining, exception: Exception) -> None:
        self._restore()

    def _leave_early(self, trainer: Trainer, module: PostTraining, together: bool) -> None:
        """Leave an iteration if its start is saved or can still be saved.

        Several ranks leave only at a common point; a single rank also leaves during sampling. A
        stateful advantage has seen the scores of the iteration before its first update.
        """
        kept, alone = self.checkpoints.published == module.iteration, distributed.world_size() == 1
        urgent = self.received in URGENT
        unmoved = not module.updates_done and not module.algorithm.memory
        if together and (kept or unmoved):
            if distributed.all_max(torch.tensor(float(urgent))) > 0:
                self.leave(trainer, module, publish=not kept)
        elif alone and urgent and unmoved:
            raise Abandoned  # older weights may be in use for sampling; they are swapped back first

    def leave(self, trainer: Trainer, module: PostTraining, *, publish: bool = True) -> NoReturn:
        """Save a checkpoint on all ranks and end the process."""
        ENDING.begin()  # on several ranks only now: a checkpoint waits for rows in flight
        if publish:
            self.checkpoints.publish(trainer, module)
        self.checkpoints.settle()
        if trainer.is_global_zero:
            say_at_once(
                f"stopped after iteration {module.iteration} of {module.plan.iterations}; "
                f"{self.checkpoints.record.how_to_go_on}"
            )
        raise Interrupted

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._note(number, self._in_main)

    def _note(self, number: int, ear: Ear) -> None:
        if number not in self._before:
            return
        if ear.hears_again():
            self._leave_now(signal.Signals(number))
        with self._noting:
            first = self.received is None
            self.received = signal.Signals(number)
        if first:
            if distributed.world_size() == 1:  # ranks must end at a common point
                ENDING.begin()
                self._clock.between = self._leave
            when = "as soon as it can" if self.received in URGENT else "after this iteration"
            say_at_once(
                f"{self.received.name}: ending {when}, with a checkpoint; once more ends at once"
            )

    def _leave_now(self, received: signal.Signals) -> NoReturn:
        if self.trainer.is_global_zero:
            step = find_newest_step(self.checkpoints.record.folder / FOLDER)
            kept = "no checkpoint is there yet" if step is None else f"checkpoint {step} is there"
            how = self.checkpoints.record.how_to_go_on
            say_at_once(f"{received.name} again: ended at once; {kept}; {how}")
        if (launcher := self.trainer.strategy.launcher) is not None:
            launcher.kill(signal.SIGKILL)  # the ranks that this process started
        end_process(INTERRUPTED)

    def _restore(self) -> None:
        ENDING.clear()
        if self._before:
            self._pipe.close()
            LEFT_TO_RUN.clear()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
