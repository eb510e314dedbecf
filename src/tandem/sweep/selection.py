"""Retraining of a sweep's best configuration on fresh seeds, and its evaluation on test prompts."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from tandem.compare import selection
from tandem.compare.selection import ENDED, SAID, Fresh, Selection
from tandem.config import build
from tandem.config.overrides import quote
from tandem.config.recorded_words import list_confirmed
from tandem.config.targets import resolve
from tandem.contracts import facts_of
from tandem.record import durable
from tandem.record.reading import runs
from tandem.sweep import gpus, status
from tandem.sweep.job import Launch, Task, finish_job, name_launch
from tandem.sweep.launch import listen_for_stop
from tandem.sweep.table import OPEN

if TYPE_CHECKING:
    from tandem.data import Data
    from tandem.types import Prompt

ANSWER = "evaluation_test.json"  # in a run's directory
PAGE = "selection.md"


def choose_seeds(sweep: Path, count: int, before: Sequence[int]) -> list[int]:
    """`count` seeds that the sweep has not used: those of an earlier selection, then the next ones.

    Raises ValueError if the sweep has since used one of the earlier selection's seeds.
    """
    used = {runs.read(folder).seed for folder in runs.find([sweep])}
    if seen := sorted(used & {*before}):
        raise ValueError(
            f"seed {seen[0]} was fresh when {sweep / selection.FILE} was written, but the sweep "
            "has used it since; move the file away to choose again"
        )
    first = max(used | {*before}) + 1
    return [*before, *range(first, first + count)][: max(count, len(before))]


def choose_folder(sweep: Path, overrides: Sequence[str]) -> Path:
    """The folder of the fresh runs, beside the sweep: inside it they would count as candidates.

    Each choice has its own folder, so the runs of an earlier choice remain untouched.
    """
    name = hashlib.sha256("\n".join(sorted(overrides)).encode()).hexdigest()[:8]
    return sweep.with_name(f"{sweep.name}-selected-{name}")


def count_unread(cfg: DictConfig, chosen_by: Sequence[int]) -> str | None:
    """A sentence on test prompts that also served training or the choice; None: there are none.

    Raises ValueError if the data has no test prompts, or if they overlap with its other prompts
    although the data could hold others.
    """
    seed, data = cfg.seed, build(cfg.data)
    if not data.test:
        how = facts_of(resolve(cfg.data["_target_"], "data")).test_from
        how = how or "choose other data, or give its Data a test"
        raise ValueError(f"data={cfg.choices.data} has no test prompts to report on: {how}")
    own = count_shared(data, [*data.train, *data.eval, *data.demonstrations, *data.pairs])
    if own and data.asks_again:
        name = cfg.choices.data
        return f"{own} are also used in training or evaluation: data={name} asks them again."
    if own:
        raise ValueError(
            f"{own} are also used in training or evaluation; give data={cfg.choices.data} other "
            "test prompts"
        )
    looked_at = count_shared(data, [p for other in chosen_by for p in reseed(cfg, other).eval])
    if looked_at is None:
        return None
    return (
        f"{looked_at} of seed {seed} are eval prompts of seeds used for the choice: the seed draws "
        "the split, and data.seed=0 gives all runs the same one."
    )


def reseed(cfg: DictConfig, seed: int) -> Data:
    """The data of the same run with another seed."""
    cfg.seed = seed
    return build(cfg.data)


def count_shared(data: Data, others: Sequence[Prompt]) -> str | None:
    """The number of test prompts that ask what one of the others asks, in words; None: no overlap.

    Where data asks again, fields must be equal too: the words of a maze name its goal alone.
    """
    from tandem.data.records import question  # imports torch, which `--help` does not

    asked = defaultdict(list)  # question -> fields of the prompts that ask it
    for prompt in others:
        asked[question(prompt)].append(prompt.fields)
    again = sum(
        any(not data.asks_again or own == prompt.fields for own in asked[question(prompt)])
        for prompt in data.test
    )
    return f"{again} of {len(data.test)} test prompts" if again else None


def carry_out(
    found: Selection,
    sweep: Path,
    seeds: Sequence[int],
    *,
    overrides: Sequence[str],
    words: Sequence[str],
    program: Path,
) -> Selection:
    """Train the missing runs, evaluate those without test scores, and update both files.

    overrides: of the choice, with what its record redacts.
    words: the arguments of `tandem select` with which all this is repeated.
    """
    order = Launch(
        id=name_launch(),
        folder=str(choose_folder(sweep, found.overrides).absolute()),
        cwd=os.getcwd(),
        program=str(program),
        shared=list(overrides),
        spelled={},
        jobs=len(seeds),
        gpus=None,  # one run at a time, so each may use all
    )
    tasks = [Task(launch=order, number=i, own=[f"seed={s}"]) for i, s in enumerate(seeds)]
    command = shlex.join(status.scrub_overrides(["tandem", "select", *words]))
    status.write_plan(Path(order.folder), command, {task.name: task.overrides for task in tasks})
    done = {run.seed: run for run in found.fresh}
    with listen_for_stop(order):
        for seed, task in zip(seeds, tasks, strict=True):
            if status.read_job(task.folder, task.overrides).state in OPEN:
                (task.folder / ANSWER).unlink(missing_ok=True)  # evaluated before the run's end
            finish_job(task)
            if order.stop_file.exists():
                break
            done[seed] = _read_fresh(seed, task, found.metric)
            found = replace(found, fresh=list(done.values()))
            keep(found, sweep)
    return found


def _read_fresh(seed: int, task: Task, metric: str) -> Fresh:
    """The scores of a fresh seed; None unless the planned run has ended."""
    state = status.read_job(task.folder, task.overrides).state
    found = Fresh(seed=seed, folder=str(task.folder), state=state, eval=None, test=None)
    if state not in ENDED or not (task.folder / runs.CONFIG).is_file():
        return found
    on_eval = runs.read(task.folder).score(metric)
    return replace(found, eval=on_eval, test=run_test(task, metric))


def run_test(task: Task, metric: str) -> float | None:
    """The score of a run on the test prompts, from a separate process; None: the evaluation failed,
    or no sample had a score.

    A failed run is evaluated at its newest checkpoint. A saved score is read, not measured again.
    """
    answer = task.folder / ANSWER
    if not answer.is_file():
        resume = [f"resume={quote(task.folder)}", *list_confirmed(task.overrides)]
        words = [*resume, "evaluate=true", "evaluation.split=test"]
        with (task.folder / SAID).open("w") as said:
            subprocess.run(
                [sys.executable, task.launch.program, *words],
                cwd=task.launch.cwd,
                env=gpus.leave_tasks(),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                check=False,
            )
    score = json.loads(answer.read_bytes()).get(metric) if answer.is_file() else None
    if score is None or not math.isfinite(score):
        answer.unlink(missing_ok=True)  # the next selection measures it again
        return None
    return score


def keep(found: Selection, sweep: Path) -> None:
    """Write the selection and its table to the sweep's folder."""
    selection.write(sweep, found)
    durable.replace(sweep / PAGE, f"{selection.table(found).markdown()}\n".encode())
