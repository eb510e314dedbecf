"""The watchdog that ends a run without progress, wherever it hangs."""

from __future__ import annotations

import faulthandler
import threading
import time

from lightning.pytorch import Callback, Trainer

from tandem import distributed
from tandem.progress import PROGRESS
from tandem.record.run_record import RunRecord
from tandem.record.stopped import describe_stop
from tandem.stop import STALLED, Stop, end_process, say_at_once
from tandem.training.module import PostTraining

LONGEST_PAUSE = 10.0  # seconds between two checks
STDERR = 2


class Watchdog(Callback):
    """On every rank: after `guards.stalled_after` seconds without progress, prints the stack of
    each thread and ends the process with its own exit code.

    Progress is a part of the samples (`tandem.progress`), an answer of the rewards, a micro-batch,
    or a part of an evaluation. If code holds the interpreter lock, no Python thread runs;
    faulthandler then prints the stacks a little later and exits with 1.
    """

    def __init__(self, record: RunRecord) -> None:
        self.record = record
        self.ended = threading.Event()
        self.thread: threading.Thread | None = None

    def on_fit_start(self, trainer: Trainer, module: PostTraining) -> None:
        self.seconds = module.guards.stalled_after
        if self.seconds is None:
            return
        self.pause = min(self.seconds / 4, LONGEST_PAUSE)
        module.clock.tick()
        self._arm()  # before the first check: code may hold the interpreter lock from the start
        self.thread = threading.Thread(target=self._watch, args=(module,), daemon=True)
        self.thread.start()

    def on_train_batch_start(self, trainer: Trainer, module: PostTraining, *_: object) -> None:
        module.clock.tick()

    def on_exception(self, trainer: Trainer, module: PostTraining, exception: Exception) -> None:
        self._end()

    def teardown(self, trainer: Trainer, module: PostTraining, stage: str) -> None:
        self._end()

    def _watch(self, module: PostTraining) -> None:
        while not self.ended.wait(self.pause):
            if time.monotonic() - PROGRESS.at > self.seconds:
                self._give_up(module)
            self._arm()
        faulthandler.cancel_dump_traceback_later()

    def _arm(self) -> None:
        faulthandler.dump_traceback_later(self.seconds + 2 * self.pause, exit=True, file=STDERR)

    def _give_up(self, module: PostTraining) -> None:
        faulthandler.dump_traceback(file=STDERR, all_threads=True)
        stop = Stop(
            f"no progress in {self.seconds:g} s in iteration {module.iteration} on rank "
            f"{distributed.rank()} (guards.stalled_after={self.seconds:g}); the stacks above show "
            "where",
            change=f"guards.stalled_after={2 * self.seconds:g}",
            page="docs/reliability.md#hanging-rewards",
        )
        say_at_once(f"stalled: {stop}")
        say_at_once(self._describe(stop))
        end_process(STALLED)

    def _describe(self, stop: Stop) -> str:
        if self.record.job != "train":  # of a warm start nothing is kept
            return self.record.how_to_go_on
        return describe_stop(self.record.folder, stop)

    def _end(self) -> None:
        """End the watch before it returns: a process forked while it is armed would wait for it."""
        self.ended.set()
        if self.thread is not None:
            self.thread.join()
