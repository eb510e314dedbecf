"""Callbacks of a run: resume, record, evaluation, checkpoints, stop."""

from __future__ import annotations

from collections.abc import Sequence

from lightning.pytorch import Callback

from tandem.evaluation.settings import Evaluation
from tandem.record.run_record import RunRecord
from tandem.training.callbacks.checkpoints import (
    Checkpoints,
    OptimizerOffload,
    Resume,
    UserCallbacksBegin,
    newest_policy,
    restore,
)
from tandem.training.callbacks.evaluating import Evaluating
from tandem.training.callbacks.interrupt import INTERRUPTED, Interrupt, Interrupted
from tandem.training.callbacks.progress import Progress
from tandem.training.callbacks.recording import Recording
from tandem.training.callbacks.watchdog import Watchdog
from tandem.types import Prompt

__all__ = [
    "INTERRUPTED",
    "Checkpoints",
    "Evaluating",
    "Interrupt",
    "Interrupted",
    "OptimizerOffload",
    "Progress",
    "Recording",
    "Resume",
    "Watchdog",
    "newest_policy",
    "restore",
    "standard",
]


def standard(
    *,
    record: RunRecord,
    evaluation: Evaluation,
    held_out: Sequence[Prompt],
    checkpoint_every: int,
    keep: int,
    resume: bool,
    others: Sequence[Callback] = (),
) -> list[Callback]:
    """All callbacks, in the required order; `others`: those of the configuration.

    At the start of an iteration, its clock starts before the evaluation. At its end, its metrics
    are written before the checkpoint that relies on them, and the checkpoint before a stop. What
    others change at the end of an iteration is in its checkpoint, so they come before it; if one
    raises there, the checkpoint is saved all the same.
    """
    recording = Recording(record=record, samples_every=evaluation.every)
    checkpoints = Checkpoints(record=record, every=checkpoint_every, keep=keep)
    interrupt = Interrupt(checkpoints)
    evaluating = Evaluating(
        recording=recording,
        interrupt=interrupt,
        checkpoints=checkpoints,
        settings=evaluation,
        prompts=held_out,
    )
    first = [Resume(checkpoints)] if resume else []
    shown = Progress(record, evaluation)
    end = [checkpoints, interrupt, shown]
    begin = [UserCallbacksBegin(checkpoints)] if others else []
    return [Watchdog(record), *first, recording, evaluating, *begin, *others, *end]
