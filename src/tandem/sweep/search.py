"""Search over configurations: the scores of earlier runs determine the next ones (Optuna's TPE).

search.journal in the sweep's folder is Optuna's record, and the launch that searches holds
search.lock. Repeating the command first continues interrupted trials and retries failed ones, then
adds trials up to `n_trials`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import numpy as np
import optuna
from omegaconf import DictConfig, OmegaConf
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import Trial, TrialState

from tandem.config.binding import bind_call
from tandem.config.names import ConfigError
from tandem.sweep import space, status
from tandem.sweep.job import LAUNCH, Launch, make_task, restore_word
from tandem.sweep.locks import try_lock
from tandem.sweep.trials import Asked, best, complete, tell

JOURNAL, LOCK = "search.journal", "search.lock"
AGAIN = "again"  # attribute of a retry: the number of the failed trial
LaunchRows = Callable[[Sequence[Sequence[str]], int], None]  # overrides of each run, first number


def check(numbers: DictConfig, arguments: Sequence[str]) -> None:
    """Raises ConfigError for invalid numbers or an invalid space, before any run starts."""
    whole = OmegaConf.to_container(numbers, resolve=True)
    given = {field.name: whole[field.name] for field in fields(Asked)}
    bind_call(Asked, given, "hydra.sweeper", partial=False)
    space.read(arguments)


def search(
    arguments: Sequence[str], asked: Asked, config: DictConfig, launch_rows: LaunchRows
) -> None:
    """Run trials until there are `n_trials` or the sweep is asked to stop.

    Raises ConfigError if another launch is searching, or if the folder holds another search.
    """
    launch = Launch(**OmegaConf.to_container(config[LAUNCH]))
    with close_abandoned(Path(launch.folder)):
        study = open_study(launch, arguments, asked)
        run_trials(study, arguments, asked, launch, launch_rows)


@contextmanager
def close_abandoned(folder: Path) -> Iterator[None]:
    """Hold the lock of the search: open trials then belong to launches that have ended.

    Raises ConfigError while another launch is searching.
    """
    with (folder / LOCK).open("a") as file:
        if not try_lock(file):
            raise ConfigError(f"another launch is searching in {folder}; wait until it has ended")
        yield


def run_trials(
    study: optuna.Study,
    arguments: Sequence[str],
    asked: Asked,
    launch: Launch,
    launch_rows: LaunchRows,
) -> None:
    """Run trials until there are `n_trials` or the launch is asked to stop."""
    searched, seeds = space.read(arguments)
    number = 0
    for trials in iterate_rounds(study, searched, asked):
        rows = {trial.number: make_rows(trial.params, seeds) for trial in trials}
        flat = [row for own in rows.values() for row in own]
        launch_rows(flat, number)
        number += len(flat)
        if launch.stop_file.exists():
            return  # interrupted trials stay open
        for trial in trials:
            tell(study, trial, [make_task(row, 0, launch) for row in rows[trial.number]], asked)
    print(best(study, asked, launch, len(seeds)), flush=True)


def make_rows(params: Mapping[str, object], seeds: Sequence[str]) -> list[list[str]]:
    return [[*space.make_overrides(params), *([seed] if seed else [])] for seed in seeds]


def open_study(launch: Launch, arguments: Sequence[str], asked: Asked) -> optuna.Study:
    """The new or existing search in this folder. Raises ConfigError if it is another one."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(Path(launch.folder) / JOURNAL))),
        study_name="search",
        direction=asked.direction,
        load_if_exists=True,
    )
    record_search(study, launch, arguments, asked)
    return study


def record_search(
    study: optuna.Study, launch: Launch, arguments: Sequence[str], asked: Asked
) -> None:
    """Record what is searched. Raises ConfigError if the record is that of another search."""
    meant = {
        "space": " ".join(sorted(arguments)),
        "direction": asked.direction,
        "metric": asked.metric,
        "rest of the command line": " ".join(status.scrub_overrides(sorted(launch.shared))),
    }
    before = study.user_attrs.get("meant", meant)
    if not complete(study):
        before = before | {"metric": asked.metric}  # no trial was measured by the old one
    if differing := [name for name, value in meant.items() if before.get(name) != value]:
        shown = before | study.user_attrs.get("typed", {})
        raise ConfigError(
            f"{launch.folder} holds a search with another {differing[0]}: "
            f"{shown.get(differing[0])}; set another sweep_dir"
        )
    typed = sorted(restore_word(line, launch) for line in arguments)
    study.set_user_attr("meant", meant)
    study.set_user_attr("typed", {"space": " ".join(typed)})  # `meant` has the keys as Hydra's


def iterate_rounds(
    study: optuna.Study, searched: space.Space, asked: Asked
) -> Iterator[list[Trial]]:
    """Trials to run together: first those left by earlier launches, then new ones."""
    for left in [*list_cut_short(study), *list_failed(study, searched)]:
        yield [left]
    while (left := asked.n_trials - count_fresh(study)) > 0:
        yield [choose_trial(study, searched, asked.seed) for _ in range(min(left, asked.at_once))]


def list_cut_short(study: optuna.Study) -> list[Trial]:
    """Trials left open by a launch that was killed or stopped; their runs resume."""
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    return [Trial(study, trial._trial_id) for trial in running]


def list_failed(study: optuna.Study, searched: space.Space) -> Iterator[Trial]:
    """Retries of failed trials, one for each."""
    trials = study.get_trials(deepcopy=False)
    tried_again = {trial.user_attrs.get(AGAIN) for trial in trials}
    for trial in trials:
        if trial.state == TrialState.FAIL and trial.number not in tried_again:
            study.enqueue_trial(trial.params, user_attrs={AGAIN: trial.number})
            yield study.ask(dict(searched))


def count_fresh(study: optuna.Study) -> int:
    """The number of trials without retries."""
    return sum(AGAIN not in trial.user_attrs for trial in study.get_trials(deepcopy=False))


def choose_trial(study: optuna.Study, searched: space.Space, seed: int) -> Trial:
    """The next trial. Its draws are keyed by its number: an interruption does not change them."""
    (key,) = np.random.SeedSequence([seed, len(study.get_trials(deepcopy=False))]).generate_state(1)
    study.sampler = optuna.samplers.TPESampler(seed=int(key), constant_liar=True)
    return study.ask(dict(searched))
