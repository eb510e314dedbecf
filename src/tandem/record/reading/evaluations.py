"""The last evaluation of a run, per prompt, from the end of `evaluations.jsonl`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandem.record.foreign import LOG_BYTES, UNREADABLE, UnreadableRun, check_file
from tandem.record.reading.logs import lines_from_the_end
from tandem.record.reading.runs import EVALUATIONS, Run, read_evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The prompts of an evaluation, and a number of each."""

    prompts: Sequence[int]  # [P] ids
    sources: Sequence[str]  # [P]
    values: NDArray  # [P]; NaN: none


def last_evaluation(run: Run, metric: str) -> Asked | None:
    """The evaluation that gives the run's score; None: it kept no values per prompt.

    Raises UnreadableRun.
    """
    path, scored = run.folder / EVALUATIONS, run.curve(metric).x
    if not len(scored) or not path.exists() or not path.stat().st_size:
        return None
    try:
        check_file(path, LOG_BYTES)
        return _of_iteration(path, metric, scored[-1])
    except UNREADABLE as error:
        raise UnreadableRun(run.folder, error) from None


def _of_iteration(path: Path, metric: str, iteration: float) -> Asked | None:
    name = json.dumps(metric).encode() + b":"
    for raw in lines_from_the_end(path):
        line = read_evaluation(raw, path.name) if name in raw else {}
        if line.get("iteration") == iteration:
            values = np.array(line[metric], dtype=np.float64)  # null is NaN
            return Asked(prompts=line["prompts"], sources=line["sources"], values=values)
    return None


def read_ends(run: Run, metric: str) -> tuple[dict, dict] | None:
    """The first and the last evaluation with values of this metric per prompt; None: there are no
    two, or their prompts differ.

    Raises UnreadableRun.
    """
    path = run.folder / EVALUATIONS
    if not path.exists() or not path.stat().st_size:
        return None
    name = json.dumps(metric).encode() + b":"
    try:
        check_file(path, LOG_BYTES)
        read = partial(read_evaluation, where=path.name)
        last = next((read(raw) for raw in lines_from_the_end(path) if name in raw), None)
        with path.open("rb") as file:
            first = next((read(raw) for raw in file if name in raw), None)
        same = first is not None and first["prompts"] == last["prompts"]
        return (first, last) if same and first["iteration"] < last["iteration"] else None
    except UNREADABLE as error:
        raise UnreadableRun(run.folder, error) from None
