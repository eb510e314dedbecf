"""Variants beside each other on one metric: scores of seeds, differences, what can be claimed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from tandem.compare.statistics.aggregates import PairedWins, wins
from tandem.compare.statistics.intervals import (
    Difference,
    Estimate,
    estimate,
    holm,
    paired,
    seeds_needed,
    welch,
)
from tandem.record.reading.states import State, said_of
from tandem.record.reading.variants import Variant, shared_seeds

ALPHA = 0.05
SMALL = 10  # seeds up to which a rare collapse goes unseen
CAVEAT = (
    f"n <= {SMALL} cannot see a 1-in-10 collapse: an interval says where the mean of seeds like "
    "these lies, not that no other kind of seed exists"
)
# Names that training and evaluation write (tally.py, held_out_pairs.py, readings.py). Of a reward
# /std, /missing or /frac_zero_std is no score, and /frac_all_wrong is the opposite of one.
SHARES = (
    r"(eval|test)/((greedy_)?accuracy(_sampled|_t[^/]+)?|pass@\d+|pair_accuracy)(/.+)?"
    r"|reward/(pass@\d+|frac_all_right)"
)
REWARDS = r"(eval|test)/reward(_[^/]+)?(/.+)?|reward/([^/]+/)?mean"
SHARE, SCORE = re.compile(SHARES), re.compile(f"{SHARES}|{REWARDS}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One variant: the last value of the metric in each run, whatever became of it."""

    variant: Variant
    scores: Sequence[float]  # by seed, of the runs that have one
    without: Sequence[int]  # seeds of runs that have none
    estimate: Estimate

    def seeds_that(self, state: State) -> list[int]:
        """Of its runs of this state, with or without a score."""
        return [run.seed for run in self.variant.runs if run.state == state]

    @property
    def by_seed(self) -> dict[int, float]:
        seeds = [seed for seed in self.variant.seeds if seed not in self.without]
        return dict(zip(seeds, self.scores, strict=True))

    @property
    def worst(self) -> tuple[int, float]:
        """Its seed and score."""
        return min(self.by_seed.items(), key=lambda pair: pair[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two variants, the one that the difference speaks for first."""

    better: Scored
    other: Scored
    difference: Difference
    wins: PairedWins
    paired_on: Sequence[int] = ()  # seeds; (): the two are not paired
    adjusted: float | None = None  # the p-value, Holm over all pairs of the table
    among: int = 1  # pairs of the table
    better_is: str = "beats"  # what the higher mean does to the other

    @property
    def going(self) -> int:
        """Runs of both that go on: a score of the moment is none to claim anything by."""
        return sum(len(side.seeds_that("goes on")) for side in (self.better, self.other))

    @property
    def seeds(self) -> tuple[int, int]:
        """n of each side."""
        return len(self.better.scores), len(self.other.scores)

    @property
    def test(self) -> str:
        """With the seeds that both sides have, where one has others too."""
        if not self.paired_on:
            return "Welch"
        n, all_paired = len(self.paired_on), {len(self.paired_on)} == {*self.seeds}
        one, other = self.seeds
        return "paired t" if all_paired else f"paired t on {n} of {one} and {other} seeds"

    @property
    def distinct(self) -> bool:
        return not self.going and self.adjusted is not None and self.adjusted < ALPHA

    @property
    def verdict(self) -> str:
        if self.going:
            runs = sum(len(side.variant.runs) for side in (self.better, self.other))
            return f"not yet: {self.going} of {runs} runs {said_of('goes on', self.going)}"
        n = " and ".join(dict.fromkeys(map(str, self.seeds)))
        if self.distinct:
            return f"{self.better.variant.name} {self.better_is} {self.other.variant.name}"
        return f"not distinguishable at n = {n}; {more_seeds(self.difference, self.among)}"


def more_seeds(difference: Difference, among: int) -> str:
    """What it would take to tell a difference of this size among so many pairs."""
    if difference.spread is None:
        return "one seed shows no spread: run more"
    if difference.spread == 0:
        return "seeds that all agree show no spread: nothing can be said"
    needed = seeds_needed(difference, level=1 - ALPHA / among)
    if needed is None:
        return "no number of seeds up to 1000 has 80 % power for this difference"
    return f"80 % power for this difference needs n = {needed}"


def scored(variant: Variant, metric: str) -> Scored:
    """Raises ValueError where no run of it came to a score."""
    known = {run.seed: run.score(metric) for run in variant.runs}
    scores = [score for score in known.values() if score is not None]
    if not scores:
        raise ValueError(f"no run of {variant.name} has {metric}")
    return Scored(
        variant=variant,
        scores=scores,
        without=[seed for seed, score in known.items() if score is None],
        estimate=estimate(scores),
    )


def is_score(metric: str) -> bool:
    """Whether more of it is better; of a length, a loss or a spread nobody knows."""
    return SCORE.fullmatch(metric) is not None


def is_share(metric: str) -> bool:
    """Whether it lies between 0 and 1, and more of it is better."""
    return SHARE.fullmatch(metric) is not None


def pairs(variants: Sequence[Scored], metric: str) -> list[Pair]:
    """All of those of one task, with p-values that hold for the whole table."""
    verb = "beats" if is_score(metric) else "is above"
    found = [
        compared(one, other)
        for one, other in combinations(variants, 2)
        if one.variant.task == other.variant.task
    ]
    adjusted = holm([pair.difference.p for pair in found])
    return [
        replace(pair, adjusted=p, among=len(found), better_is=verb)
        for pair, p in zip(found, adjusted, strict=True)
    ]


def compared(one: Scored, other: Scored) -> Pair:
    """Paired on the seeds that both have by design, where no score of these is missing; else
    Welch's."""
    on = pairing(one, other)
    if on:
        a, b = ([side.by_seed[seed] for seed in on] for side in (one, other))
        found = paired(a, b)
    else:
        found = welch(one.scores, other.scores)
    if found.mean < 0:  # of the seeds that both have, whatever the means over all say
        return compared(other, one)
    return Pair(
        better=one,
        other=other,
        difference=found,
        wins=wins(one.scores, other.scores),
        paired_on=on,
    )


def pairing(one: Scored, other: Scored) -> list[int]:
    """The seeds that a test pairs: half of the seeds of either at least, and two of them, or all
    that there are; [] if it pairs none, as the rest would then know more."""
    on = shared_seeds(one.variant, other.variant)
    most = max(len(one.variant.seeds), len(other.variant.seeds))
    few = 2 * len(on) < most or len(on) == 1 < most
    return [] if few or {*on} & {*one.without, *other.without} else on
