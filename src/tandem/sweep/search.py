"""A search: which runs there will be is decided by what came of those before (Optuna's TPE).

search.journal in the sweep's folder is Optuna's own record of it. The same command again first
finishes trials that were cut short or failed, then goes on until there are `n_trials`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import optuna
from omegaconf import DictConfig, OmegaConf
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import Trial, TrialState

from tandem.compare import runs
from tandem.config.names import ConfigError
from tandem.sweep import outcome, space
from tandem.sweep.job import LAUNCH, Launch, Task, task_of

JOURNAL = "search.journal"
DIRECTIONS = ("maximize", "minimize")
AGAIN = "again"  # of a trial: the number of the failed one whose parameters it tries once more
LaunchRows = Callable[[Sequence[Sequence[str]], int], None]  # overrides of each run, first number


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The numbers of a search."""

    n_trials: int
    at_once: int
    seed: int
    direction: str
    metric: str | None  # None: the headline of a run

    def __post_init__(self) -> None:
        for name, number in (("n_trials", self.n_trials), ("at_once", self.at_once)):
            if number < 1:
                raise ConfigError(f"hydra.sweeper.{name}={number}: must be positive")
        if self.direction not in DIRECTIONS:
            either = " or ".join(DIRECTIONS)
            raise ConfigError(f"hydra.sweeper.direction={self.direction}: write {either}")


def check(numbers: DictConfig, arguments: Sequence[str]) -> None:
    """Raises ConfigError for a search that cannot be, before anything is run for it."""
    Asked(**{field.name: numbers[field.name] for field in fields(Asked)})
    space.read(arguments)


def search(
    arguments: Sequence[str], asked: Asked, config: DictConfig, launch_rows: LaunchRows
) -> None:
    """Run trials until there are enough, or the sweep is told to stop."""
    launch = Launch(**OmegaConf.to_container(config[LAUNCH]))
    searched, seeds = space.read(arguments)
    study = opened(Path(launch.folder), arguments, asked)
    number = 0
    for trials in rounds(study, searched, asked):
        rows = {trial.number: rows_of(trial.params, seeds) for trial in trials}
        flat = [row for own in rows.values() for row in own]
        launch_rows(flat, number)
        number += len(flat)
        if launch.stop_file.exists():
            return  # what was cut short stays open
        for trial in trials:
            tell(study, trial, [task_of(row, 0, launch) for row in rows[trial.number]], asked)
    print(best(study, asked, launch.folder, len(seeds)), flush=True)


def rows_of(params: Mapping[str, object], seeds: Sequence[str]) -> list[list[str]]:
    return [[*space.lines(params), *([seed] if seed else [])] for seed in seeds]


def opened(folder: Path, arguments: Sequence[str], asked: Asked) -> optuna.Study:
    """The search of this folder, as far as it came. Raises ConfigError if it is another one."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(folder / JOURNAL))),
        study_name="search",
        direction=asked.direction,
        load_if_exists=True,
    )
    meant = {"space": sorted(arguments), "metric": asked.metric, "direction": asked.direction}
    before = study.user_attrs.get("meant", meant)
    if differing := [name for name, value in meant.items() if before[name] != value]:
        raise ConfigError(
            f"{folder} holds a search of another {differing[0]}, {before[differing[0]]}; give "
            "another sweep_dir"
        )
    study.set_user_attr("meant", meant)
    return study


def rounds(study: optuna.Study, searched: space.Space, asked: Asked) -> Iterator[list[Trial]]:
    """Trials to run together: first what is left of earlier launches, then new ones."""
    for left in [*cut_short(study), *failed_before(study, searched)]:
        yield [left]
    while (left := asked.n_trials - fresh(study)) > 0:
        yield [chosen(study, searched, asked.seed) for _ in range(min(left, asked.at_once))]


def cut_short(study: optuna.Study) -> list[Trial]:
    """Open since a launch was killed or stopped; their runs go on where they were."""
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    return [Trial(study, trial._trial_id) for trial in running]


def failed_before(study: optuna.Study, searched: space.Space) -> Iterator[Trial]:
    trials = study.get_trials(deepcopy=False)
    tried_again = {trial.user_attrs.get(AGAIN) for trial in trials}
    for trial in trials:
        if trial.state == TrialState.FAIL and trial.number not in tried_again:
            study.enqueue_trial(trial.params, user_attrs={AGAIN: trial.number})
            yield study.ask(dict(searched))


def fresh(study: optuna.Study) -> int:
    """How many there are, but for second tries."""
    return sum(AGAIN not in trial.user_attrs for trial in study.get_trials(deepcopy=False))


def chosen(study: optuna.Study, searched: space.Space, seed: int) -> Trial:
    """The next one. Its draws are its own, so that a search that was cut short goes on alike."""
    (key,) = np.random.SeedSequence([seed, len(study.get_trials(deepcopy=False))]).generate_state(1)
    study.sampler = optuna.samplers.TPESampler(seed=int(key), constant_liar=True)
    return study.ask(dict(searched))


def tell(study: optuna.Study, trial: Trial, tasks: Sequence[Task], asked: Asked) -> None:
    """The mean over its runs; a trial one of whose runs has not finished has failed."""
    states = [outcome.job_of(task.folder, task.overrides).state for task in tasks]
    scores = [score_of(task.folder, asked.metric) for task in tasks]
    if set(states) != {"finished"} or None in scores:
        study.tell(trial, state=TrialState.FAIL)
        print(f"trial {trial.number} failed: its runs are {', '.join(states)}", flush=True)
        return
    study.tell(trial, float(np.mean(scores)))


def score_of(folder: Path, metric: str | None) -> float | None:
    if metric is None:
        found = outcome.score_of(folder)
        return None if found is None else found[1]
    return runs.read(folder).score(metric)


def best(study: optuna.Study, asked: Asked, folder: str, seeds: int) -> str:
    """What was found, and that it was found by looking."""
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if not done:
        return "no trial came to an end"
    top = study.best_trial
    where = " ".join(line.lstrip("+") for line in space.lines(top.params))
    found = f"{asked.metric or 'score'} {top.value:.4g} (n = {seeds})"
    return (
        f"\nbest of k = {len(done)} trials: {where}, {found}\n"
        f"It was chosen by looking; fresh seeds say how good it is:\n\n    "
        f"python -m tandem.select {folder}"
    )
