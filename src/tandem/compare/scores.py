"""The score of a variant: the last value of one metric in each of its runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tandem.compare.statistics.intervals import ANY, Estimate, estimate
from tandem.record.reading.states import State
from tandem.record.reading.variants import Variant

# Names that training and evaluation write (evaluation, training/metrics). A reward's /std,
# /missing and /frac_zero_std are no scores; /frac_all_wrong is better when lower.
SHARES = (
    r"(eval|test)/((greedy_)?accuracy(_sampled|_t[^/]+|_in_\d+)?|pass@\d+|pair_accuracy)(/.+)?"
    r"|reward/(pass@\d+|frac_all_right)"
)
REWARDS = r"(eval|test)/reward(_[^/]+)?(/.+)?|reward/([^/]+/)?mean"
SHARE, SCORE = re.compile(SHARES), re.compile(f"{SHARES}|{REWARDS}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One variant: the last value of the metric in each run, including runs that died."""

    variant: Variant
    scores: Sequence[float]  # by seed, of the runs that have one
    without: Sequence[int]  # seeds of runs that have none
    estimate: Estimate
    # Seed -> iteration of its score, where a later evaluation has none.
    outdated: Mapping[int, int] = field(default_factory=dict)

    def seeds_that(self, state: State) -> list[int]:
        """The seeds of its runs in this state, with or without a score."""
        return [run.seed for run in self.variant.runs if run.state == state]

    def describe_outdated(self) -> list[str]:
        """A clause for each seed whose score is not of its last evaluation, which is null."""
        return [
            f"seed {seed}: the last value is missing, so that of iteration {at} counts"
            for seed, at in self.outdated.items()
        ]

    @property
    def name(self) -> str:
        return self.variant.name

    @property
    def by_seed(self) -> dict[int, float]:
        seeds = [seed for seed in self.variant.seeds if seed not in self.without]
        return dict(zip(seeds, self.scores, strict=True))

    @property
    def worst(self) -> tuple[int, float]:
        """The seed with the lowest score, and that score."""
        return min(self.by_seed.items(), key=lambda pair: pair[1])


def score_variant(variant: Variant, metric: str) -> Scored:
    """The scores of a variant. Raises ValueError if none of its runs has a score."""
    known = {run.seed: run.score(metric) for run in variant.runs}
    outdated = {run.seed: run.find_outdated(metric) for run in variant.runs}
    scores = [score for score in known.values() if score is not None]
    if not scores:
        raise ValueError(f"no run of {variant.name} has {metric}")
    return Scored(
        variant=variant,
        scores=scores,
        without=[seed for seed, score in known.items() if score is None],
        estimate=estimate(scores, bounds_of(metric)),
        outdated={seed: at for seed, at in outdated.items() if at is not None},
    )


def rank(variants: Sequence[Scored]) -> list[Scored]:
    """By task, and within a task the highest mean first."""
    return sorted(variants, key=lambda one: (one.variant.task, -one.estimate.mean))


def is_score(metric: str) -> bool:
    """Whether higher is better; unknown, hence False, for a length, loss or spread."""
    return SCORE.fullmatch(metric) is not None


def is_of_evaluation(metric: str) -> bool:
    """Whether evaluations measure it, on eval prompts and under the same name on test prompts."""
    return metric.startswith("eval/")


def is_share(metric: str) -> bool:
    """Whether the metric lies between 0 and 1 and higher is better."""
    return SHARE.fullmatch(metric) is not None


def bounds_of(metric: str) -> tuple[float, float]:
    """The known bounds of the metric: 0 and 1 for a share."""
    return (0.0, 1.0) if is_share(metric) else ANY
