"""Trials of a search: their numbers and results."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from tandem.compare.scores import is_of_evaluation, is_score
from tandem.config.names import ConfigError, nearest
from tandem.contracts.bounds import at_least, positive
from tandem.record.reading import runs
from tandem.sweep import space, status
from tandem.sweep.job import Launch, Task, restore_word
from tandem.sweep.status import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The numbers of a search."""

    n_trials: Annotated[int, positive]
    at_once: Annotated[int, positive]
    seed: Annotated[int, at_least(0)]
    direction: Literal["maximize", "minimize"]
    metric: str | None  # None: the headline of a run


def complete(study: optuna.Study) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def tell(study: optuna.Study, trial: Trial, tasks: Sequence[Task], asked: Asked) -> None:
    """Report the mean score of a trial's runs to Optuna. With pending runs the trial stays open.

    Raises ConfigError, and leaves the trial open, if runs of this search do not have the metric.
    """
    jobs = {task.folder: status.read_job(task.folder, task.overrides) for task in tasks}
    if left := [job for job in jobs.values() if job.state in status.TO_COME]:
        print(f"trial {trial.number} stays open: {left[0].name} is {left[0].state}", flush=True)
        return
    ended = [folder for folder, job in jobs.items() if job.state == "finished"]
    scores = {folder: score_of(folder, asked.metric) for folder in ended}
    if not complete(study):
        for folder in (folder for folder, score in scores.items() if score is None):
            refuse_unknown(asked.metric, folder)
    without = [folder for folder in jobs if scores.get(folder) is None]
    if without:
        study.tell(trial, state=TrialState.FAIL)
        why = "; ".join(missing(jobs[folder], asked) for folder in without)
        print(f"trial {trial.number} failed: {why}", flush=True)
        return
    study.tell(trial, float(np.mean(list(scores.values()))))


def score_of(folder: Path, metric: str | None) -> float | None:
    """The score of a finished run; None if it has none."""
    if metric is None:
        found = status.score_of(folder)
        return None if found is None else found[1]
    return runs.read(folder).score(metric)


def refuse_unknown(metric: str | None, folder: Path) -> None:
    """Raises ConfigError if this finished run has no metric of this name."""
    names = runs.read(folder).names()
    if names & {*([metric] if metric else status.HEADLINES)}:
        return
    if metric is None:
        wanted = " or ".join(status.HEADLINES)
        raise ConfigError(f"{folder} has no {wanted}: set hydra.sweeper.metric")
    near = nearest(metric, sorted(names))
    there = ", ".join(sorted(name for name in names if name.startswith("eval/"))) or "no eval/"
    hint = f"there is {there}" if near is None else f"did you mean {near!r}?"
    raise ConfigError(f"hydra.sweeper.metric={metric}: {folder} ended without it; {hint}")


def missing(job: Job, asked: Asked) -> str:
    """The metric that a run lacks, in words."""
    if job.state == "finished":
        return f"{job.name} has no value of {asked.metric or ' or '.join(status.HEADLINES)}"
    return f"{job.name} {job.state}" + (f" ({job.reason})" if job.reason else "")


def best(study: optuna.Study, asked: Asked, launch: Launch, seeds: int) -> str:
    """The best trial, with the warning that its score was selected."""
    done = complete(study)
    if not done:
        return "no trial was completed"
    top = study.best_trial
    where = " ".join(restore_word(line, launch) for line in space.make_overrides(top.params))
    found = f"{asked.metric or 'score'} {top.value:.4g} (n = {seeds})"
    return (
        f"\nbest of k = {len(done)} trials: {where}, {found}\n"
        "The score of the best of several trials is too good on average; measure it on fresh "
        f"seeds:{next_step(asked, launch.folder)}"
    )


def next_step(asked: Asked, folder: str) -> str:
    """How to train fresh seeds; `tandem select` can choose only the highest value of a score that
    is measured on test prompts too."""
    highest, metric = asked.direction == "maximize", asked.metric
    if highest and (metric is None or (is_score(metric) and is_of_evaluation(metric))):
        words = [] if metric is None else [f"metric={metric}"]
        return f"\n\n    {shlex.join(['tandem', 'select', folder, *words])}"
    which = "highest" if highest else "lowest"
    return (
        f" train them by hand. `tandem select` would choose the highest eval/ score, not the "
        f"{which} {metric or 'score'}."
    )
