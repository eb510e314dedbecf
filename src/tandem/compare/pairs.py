"""The difference of two variants: its test, its intervals and the claim they support.

Claims are based on simultaneous intervals, which all hold at once with 95 % confidence: "A beats B"
is claimed if the one of A - B excludes 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from tandem.compare.scores import Scored, is_score
from tandem.compare.statistics.aggregates import WinCount, count_paired_wins, count_wins
from tandem.compare.statistics.intervals import (
    FEWEST,
    MOST_SEEDS,
    Difference,
    bonferroni,
    bound_spread,
    find_seeds_needed,
    paired_difference,
    welch,
)
from tandem.compare.texts import format_number
from tandem.record.reading.states import describe_state
from tandem.record.reading.variants import find_shared_seeds

ALPHA = 0.05
FEWEST_FOR_POWER = 5  # seeds: with fewer, size and spread are too uncertain
SMALL = 10  # seeds up to which a rare collapse goes unseen
CAVEAT = (
    f"n <= {SMALL} cannot reveal a collapse of 1 run in 10: an interval covers the mean of seeds "
    "like these and does not exclude seeds that behave differently"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedsNeeded:
    """Seeds per side for 80 % power, over the 95 % interval of the spread of all seeds."""

    effect: float  # the true difference to detect
    low: int | None  # None: more than a thousand
    likely: int | None  # for the observed spread
    high: int | None

    def __str__(self) -> str:
        if self.low is None:
            return f"more than {MOST_SEEDS}"
        if self.low == self.high:
            return str(self.low)
        return f"{self.low} to {self.high or f'more than {MOST_SEEDS}'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two variants, the one with the higher mean first."""

    better: Scored
    other: Scored
    difference: Difference
    wins: WinCount
    paired_on: Sequence[int] = ()  # seeds; (): not paired
    adjusted: float | None = None  # the p-value, Bonferroni over all pairs of the table
    among: int = 1  # pairs of the table
    power_for: float | None = None  # the true difference for the power; None: the observed one
    better_is: str = "beats"  # verb of a claim

    @property
    def going(self) -> int:
        """Number of runs in progress on both sides; with any, nothing is claimed."""
        return sum(len(side.seeds_that("running")) for side in (self.better, self.other))

    @property
    def seeds(self) -> tuple[int, int]:
        """n of each side."""
        return len(self.better.scores), len(self.other.scores)

    @property
    def test(self) -> str:
        """The name of the test, with the number of paired seeds if a side has more."""
        if not self.paired_on:
            return "Welch"
        n, (one, other) = len(self.paired_on), self.seeds
        if self.is_partly_paired:
            return f"paired t on {n} of {one} and {other} seeds"
        return "paired t"

    @property
    def is_partly_paired(self) -> bool:
        """Whether its difference is over the seeds of both, and a side has more."""
        return bool(self.paired_on) and {len(self.paired_on)} != {*self.seeds}

    @property
    def fewest(self) -> int:
        """Seeds of the smaller side of the test."""
        return len(self.paired_on) or min(self.seeds)

    @property
    def simultaneous(self) -> tuple[float, float] | None:
        """The interval that holds together with those of all other pairs of the table."""
        return self.difference.interval(1 - ALPHA / self.among)

    @property
    def distinct(self) -> bool:
        """Whether the simultaneous interval excludes 0 and all runs have ended."""
        return not self.going and self.adjusted is not None and self.adjusted < ALPHA

    @property
    def seeds_needed(self) -> SeedsNeeded | None:
        """Seeds needed; None with too few seeds, or if they show no spread."""
        fewest = FEWEST_FOR_POWER if self.power_for is None else FEWEST
        found = self.difference
        if self.fewest < fewest or not found.spread:
            return None
        effect = abs(found.mean) if self.power_for is None else self.power_for
        low, high = bound_spread(found.spread, found.spread_df)
        paired, level = found.pairs is not None, 1 - ALPHA / self.among
        few, likely, many = (
            find_seeds_needed(effect, spread, paired=paired, level=level)
            for spread in (low, found.spread, high)
        )
        return SeedsNeeded(effect=effect, low=few, likely=likely, high=many)

    @property
    def verdict(self) -> str:
        if self.going:
            runs = sum(len(side.variant.runs) for side in (self.better, self.other))
            state = describe_state("running", self.going)
            return f"not known yet: {self.going} of {runs} runs {state}"
        n = " and ".join(dict.fromkeys(map(str, self.seeds)))
        if self.distinct:
            return f"{self.better.name} {self.better_is} {self.other.name}"
        return f"not distinguishable at n = {n}; {self.advice}"

    @property
    def advice(self) -> str:
        """The seeds that separating the two would take, or why that is unknown."""
        if self.fewest < FEWEST:
            return f"run at least {FEWEST} seeds, better {FEWEST_FOR_POWER}"
        if self.difference.spread == 0:
            return "all seeds agree, so the spread is unknown"
        needed = self.seeds_needed
        if needed is None:
            return f"run {FEWEST_FOR_POWER} seeds to estimate how many are needed"
        size = format_number(needed.effect)
        return f"80 % power at a true difference of {size} takes n = {needed}"


def compare_all(
    variants: Sequence[Scored], metric: str, power_for: float | None = None
) -> list[Pair]:
    """All pairs of each task, with p-values and intervals that hold for the whole table."""
    verb = "beats" if is_score(metric) else "is above"
    found = [
        compare_two(one, other)
        for one, other in combinations(variants, 2)
        if one.variant.task == other.variant.task
    ]
    adjusted = bonferroni([pair.difference.p for pair in found])
    return [
        replace(pair, adjusted=p, among=len(found), power_for=power_for, better_is=verb)
        for pair, p in zip(found, adjusted, strict=True)
    ]


def compare_two(one: Scored, other: Scored) -> Pair:
    """The paired difference if the two share enough seeds; else Welch's."""
    on = choose_pairs(one, other)
    if on:
        a, b = ([side.by_seed[seed] for seed in on] for side in (one, other))
        found, wins = paired_difference(a, b), count_paired_wins(a, b)
    else:
        found = welch(one.scores, other.scores)
        wins = count_wins(one.scores, other.scores)
    if found.mean < 0:  # over the paired seeds; means over all seeds may differ
        return compare_two(other, one)
    return Pair(better=one, other=other, difference=found, wins=wins, paired_on=on)


def choose_pairs(one: Scored, other: Scored) -> list[int]:
    """The seeds that a test pairs: those of both sides that have a score on both, if they are at
    least half of each side's and at least two, or all if there is one. [] otherwise: an unpaired
    test then uses more of the data. A run that died takes its pair with it, and no other."""
    lost = {*one.without, *other.without}
    on = [seed for seed in find_shared_seeds(one.variant, other.variant) if seed not in lost]
    most = max(len(one.scores), len(other.scores))
    return [] if 2 * len(on) < most or len(on) == 1 < most else on


def order_by_claim(pairs: Sequence[Pair]) -> list[Pair]:
    """Pairs with a claim first, then by size."""
    return sorted(pairs, key=lambda pair: (not pair.distinct, -abs(pair.difference.mean)))
