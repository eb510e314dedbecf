"""The end of a run that makes no progress, in whatever it hangs."""

from __future__ import annotations

import faulthandler
import os
import threading
import time

from lightning.pytorch import Callback, Trainer

from tandem import distributed
from tandem.record.run_record import RunRecord
from tandem.stop import STALLED, end_process
from tandem.training.module import PostTraining

LONGEST_PAUSE = 10.0  # seconds between two looks
STDERR = 2


class Watchdog(Callback):
    """On every rank: after `guards.stalled_after` seconds without progress it shows the stack of
    each thread and ends the process with a code of its own.

    Progress is a part of the samples, an answer of the rewards, a micro-batch, or a part of an
    evaluation. Where code holds the interpreter's lock no thread of Python runs; the stacks come a
    little later then, by faulthandler, whose exit code is 1.
    """

    def __init__(self, record: RunRecord) -> None:
        self.record = record
        self.ended = threading.Event()

    def on_fit_start(self, trainer: Trainer, module: PostTraining) -> None:
        self.seconds = module.guards.stalled_after
        if self.seconds is None:
            return
        self.pause = min(self.seconds / 4, LONGEST_PAUSE)
        module.clock.tick()
        self._arm()  # before the first look: code may take the interpreter's lock at once
        threading.Thread(target=self._watch, args=(module,), daemon=True).start()

    def on_train_batch_start(self, trainer: Trainer, module: PostTraining, *_: object) -> None:
        module.clock.tick()

    def on_exception(self, trainer: Trainer, module: PostTraining, exception: Exception) -> None:
        self._end()

    def teardown(self, trainer: Trainer, module: PostTraining, stage: str) -> None:
        self._end()

    def _watch(self, module: PostTraining) -> None:
        while not self.ended.wait(self.pause):
            if time.monotonic() - module.clock.ticked > self.seconds:
                self._give_up(module)
            self._arm()
        faulthandler.cancel_dump_traceback_later()

    def _arm(self) -> None:
        faulthandler.dump_traceback_later(self.seconds + 2 * self.pause, exit=True, file=STDERR)

    def _give_up(self, module: PostTraining) -> None:
        faulthandler.dump_traceback(file=STDERR, all_threads=True)
        os.write(
            STDERR,
            f"\nstalled: no progress in {self.seconds:g} s in iteration {module.iteration} on rank "
            f"{distributed.rank()} (guards.stalled_after={self.seconds:g}); the stacks above show "
            f"where; {self.record.how_to_go_on}\n".encode(),
        )
        end_process(STALLED)

    def _end(self) -> None:
        self.ended.set()
