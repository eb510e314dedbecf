"""The noise of seeds and of prompts, from the evaluation scores of each prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tandem.compare.pairs import Pair
from tandem.compare.scores import Scored
from tandem.compare.statistics.variance_components import (
    VarianceComponents,
    estimate_own,
    estimate_shared,
    estimate_unpaired,
    subtract_unrelated,
)
from tandem.record.reading.evaluations import Asked, last_evaluation

Answers = Mapping[int, Asked]  # by seed, of the runs of a variant that have a score


def read_answers(one: Scored, metric: str) -> Answers:
    """The answers by seed; {} if a run with a score stored none."""
    scored = [run for run in one.variant.runs if run.seed not in one.without]
    found = {run.seed: last_evaluation(run, metric) for run in scored}
    return {} if None in found.values() else found


def estimate_components(answers: Sequence[Asked]) -> VarianceComponents | None:
    """None if nothing was stored, or if each source has one prompt, so that none was drawn."""
    table = cross_seeds(answers) if len(answers) > 1 else None
    if table is not None:
        return estimate_shared(*table) if are_drawn(table[1]) else None
    known = [_choose_prompts(one, np.isfinite(one.values)) for one in answers]
    if not known or not all(are_drawn(one.sources) for one in known):
        return None
    return estimate_own([one.values for one in known], [one.sources for one in known])


def are_drawn(sources: Sequence[str]) -> bool:
    """Whether some source has several prompts, so that they are a draw."""
    return len(set(sources)) < len(sources)


def cross_seeds(answers: Sequence[Asked]) -> tuple[NDArray, Sequence[str]] | None:
    """Values [n, P] and sources of the prompts for which all seeds have a value; None if seeds
    had different prompts."""
    if any(one.prompts != answers[0].prompts for one in answers):
        return None
    y = np.stack([one.values for one in answers])
    whole = np.isfinite(y).all(0)
    return y[:, whole], _choose_prompts(answers[0], whole).sources


def _choose_prompts(one: Asked, which: NDArray) -> Asked:
    places = np.flatnonzero(which).tolist()
    return Asked(
        prompts=[one.prompts[i] for i in places],
        sources=[one.sources[i] for i in places],
        values=one.values[which],
    )


def estimate_difference(
    pair: Pair, answers: Mapping[str, Answers], alone: Mapping[str, VarianceComponents | None]
) -> VarianceComponents | None:
    """The components of a difference, pair by pair or by side, as it was tested.

    None if the sides are unpaired but some of their runs had the same prompts, whose effects
    cancel by an unknown amount.
    """
    names = pair.better.variant.name, pair.other.variant.name
    (a, b), (of_a, of_b) = ([found[name] for name in names] for found in (answers, alone))
    if of_a is None or of_b is None:
        return None
    of_seed = [(a[seed], b[seed]) for seed in pair.paired_on]
    if of_seed and all(x.prompts == y.prompts for x, y in of_seed):
        return estimate_components([replace(x, values=x.values - y.values) for x, y in of_seed])
    both = cross_seeds([*a.values(), *b.values()])
    if both is not None and min(len(a), len(b)) > 1:
        y, sources = both
        return estimate_unpaired(y[: len(a)], y[len(a) :], sources)
    return None if collect_prompts(a) & collect_prompts(b) else subtract_unrelated(of_a, of_b)


def collect_prompts(answers: Answers) -> set[int]:
    """The prompts of all runs."""
    return {prompt for one in answers.values() for prompt in one.prompts}
