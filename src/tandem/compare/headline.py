"""The headline of a comparison: the best variant, the claims, and what to run next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tandem.compare.comparison import Comparison
from tandem.compare.configuration import find_confounds
from tandem.compare.judges import describe_hacked
from tandem.compare.more_seeds import write_command
from tandem.compare.multitask import TaskAggregate
from tandem.compare.pairs import FEWEST_FOR_POWER, Pair
from tandem.compare.scores import Scored, is_score, rank
from tandem.compare.statistics.intervals import ROUNDING
from tandem.compare.texts import (
    NAMED,
    format_edges,
    format_interval,
    format_number,
    list_names,
    name_seeds,
)
from tandem.record.reading.states import count_states, describe_state

MANY_SEEDS = 30  # more are rarely worth their cost


def write_headline(found: Comparison) -> str:
    """The result, and how many runs are still in progress."""
    tasks = {one.variant.task for one in found.variants}
    said = describe_tasks(found) if len(tasks) > 1 else describe_task(found)
    going = sum(run.state == "running" for run in found.runs)
    if not going:
        return said
    return f"{said} So far: {going} of {len(found.runs)} runs {describe_state('running', going)}."


def describe_task(found: Comparison) -> str:
    """The highest mean and the variants that share it, then what each of them beats."""
    ranked = rank(found.variants)
    highest = ranked[: count_tied([one.estimate.mean for one in ranked])]
    claims = [
        describe_claims(one, found.pairs, tied=highest) for one in highest if len(highest) <= NAMED
    ]
    return " ".join(filter(None, [describe_highest(highest, found), *claims]))


def count_tied(means: Sequence[float]) -> int:
    """How many of the means, highest first, equal the first one up to rounding."""
    return sum(math.isclose(mean, means[0], rel_tol=ROUNDING) for mean in means)


def describe_highest(highest: Sequence[Scored], found: Comparison) -> str:
    estimate = highest[0].estimate
    mean, edges = format_number(estimate.mean), format_interval(estimate.low, estimate.high)
    n = " and ".join(dict.fromkeys(str(one.estimate.n) for one in highest))
    if len(highest) > 1:  # their intervals may differ: the table has them
        return f"{name_tied(highest)} tie for the highest {found.metric}: {mean}, n = {n}."
    has = "has the highest" if len(found.variants) > 1 else "has"
    mean = mean if edges == "-" else f"{mean} {edges}"
    return f"{highest[0].name} {has} {found.metric}: {mean}, n = {n}."


def name_tied(highest: Sequence[Scored | TaskAggregate]) -> str:
    many, names = len(highest), [one.name for one in highest]
    return f"{many} variants" if many > NAMED else list_names(names, many)


def describe_claims(best: Scored, pairs: Sequence[Pair], *, tied: Sequence[Scored]) -> str:
    """The variants that it beats and by how much, the undecided ones it does not tie with, and
    those that beat it on the seeds of both."""
    subject = best.name if len(tied) > 1 else "It"
    own = pairs_of(best, pairs)
    lower = [pair for pair in own if pair.distinct and pair.better is best]
    higher = [pair for pair in own if pair.distinct and pair.other is best]
    undecided = [pair for pair in own if not (pair.distinct or pair.going)]
    left_open = [pair for pair in undecided if find_rival(best, pair) not in tied]
    said = []
    if lower:
        names = list_rivals(best, lower, len(own))
        said.append(f"{subject} {lower[0].better_is} {names}{describe_size(lower)}.")
    if left_open:
        among = list_rivals(best, left_open, len(own))
        said.append(f"{subject} is not distinguishable from {among}.")
    for pair in higher:
        said.append(f"Over the seeds of both, {pair.verdict}{describe_size([pair])}.")
    return " ".join(said)


def pairs_of(one: Scored, pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs that this variant is part of."""
    return [pair for pair in pairs if pair.better is one or pair.other is one]


def find_rival(one: Scored, pair: Pair) -> Scored:
    """The other variant of a pair."""
    return pair.other if pair.better is one else pair.better


def list_rivals(one: Scored, pairs: Sequence[Pair], among: int) -> str:
    return list_names([find_rival(one, pair).name for pair in pairs], among)


def describe_size(pairs: Sequence[Pair]) -> str:
    """The difference and its interval for one pair; for several the smallest lower end."""
    if len(pairs) == 1:
        size = format_number(pairs[0].difference.mean)
        return f" by {size} {format_edges(pairs[0].simultaneous)}"
    least = min(pair.simultaneous[0] for pair in pairs)
    return f" by at least {format_number(least)}"


def describe_tasks(found: Comparison) -> str:
    """The highest interquartile mean over tasks, if scores are aggregated; else no best variant."""
    tasks = len({one.variant.task for one in found.variants})
    said = f"{found.metric} on {tasks} tasks; each claim is about one task."
    if not found.over_tasks:
        return said
    ranked = found.over_tasks
    highest = ranked[: count_tied([one.mean.value for one in ranked])]
    best = highest[0].mean
    mean = format_number(best.value)
    if len(highest) > 1:
        return f"{said} {name_tied(highest)} tie for the highest interquartile mean: {mean}."
    found_to_be = f"{mean} {format_interval(best.low, best.high)}, n = {best.scores} scores"
    return f"{said} {highest[0].name} has the highest interquartile mean: {found_to_be}."


def write_meta(found: Comparison) -> str:
    """The numbers of variants, runs and seeds with a score, and the runs that are incomplete."""
    seeds = sorted({one.estimate.n for one in found.variants})
    many = f"{len(found.variants)} variants" if len(found.variants) > 1 else "1 variant"
    each = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    said = [many, f"{len(found.runs)} runs", f"n = {each} seeds each"]
    unfinished = count_states([run.state for run in found.runs])
    return " · ".join(filter(None, [*said, unfinished, *found.unrecorded]))


def write_warnings(found: Comparison) -> list[str]:
    """Hacked rewards, missing seeds and scores, and differences besides the compared one."""
    variants = found.variants
    outdated = [f"{one.name} {said}." for one in variants for said in one.describe_outdated()]
    missing = [*describe_missing_seeds(variants), *outdated]
    return [*describe_hacked(found.judges), *missing, *find_confounds(variants)]


def describe_missing_seeds(variants: Sequence[Scored]) -> Iterator[str]:
    """Variants whose mean lacks a few seeds that the others have; other seeds by design are no
    fault, and a run in progress will have its score."""
    for one in variants:
        others = [x for x in variants if x.variant.task == one.variant.task and x is not one]
        own, known = {*one.by_seed}, {seed for other in others for seed in other.by_seed}
        missing = sorted(known - own - {*one.seeds_that("running")})
        if missing and len(own & known) >= len(missing):
            yield (
                f"{one.name} has no score for {name_seeds(missing)}, unlike others: its mean is "
                "over other seeds."
            )


def write_next(found: Comparison) -> list[str]:
    """The advised next run: a sentence, and a command if it fits in one line; [] for none."""
    tasks = {one.variant.task for one in found.variants}
    if len(found.variants) < 2 or len(tasks) > 1:
        return []
    if any(run.state == "running" for run in found.runs):
        return ["Wait for the runs in progress."]
    return list(_suggest(found))


def _suggest(found: Comparison) -> Iterator[str]:
    best = rank(found.variants)[0]
    own = pairs_of(best, found.pairs)
    # On the seeds of both; over the same seeds only rounding puts one first here and second there.
    against = [pair for pair in own if pair.other is best and pair.is_partly_paired]
    left_open = [pair for pair in own if not pair.distinct]
    fewest = min(len(one.scores) for one in found.variants)
    if against:
        yield (
            f"{best.name} has the highest mean over all its seeds, but not over those it shares "
            f"with {list_rivals(best, against, len(own))}: run the same seeds of each."
        )
    elif not left_open:
        if is_score(found.metric):
            yield f"{best.name} is the best of these: evaluate it on data not used to choose it."
    elif fewest < FEWEST_FOR_POWER:
        yield f"Run {FEWEST_FOR_POWER} seeds of each: with fewer the spread is too uncertain."
        yield from write_command(found.variants, FEWEST_FOR_POWER)
    else:
        yield from _suggest_seeds(best, left_open)


def _suggest_seeds(best: Scored, left_open: Sequence[Pair]) -> Iterator[str]:
    """More seeds for the pairs they would decide; for the others the largest difference left."""
    likely = [(pair, needed.likely) for pair in left_open if (needed := pair.seeds_needed)]
    worth = [(pair, n) for pair, n in likely if n is not None and n <= MANY_SEEDS]
    told = [pair for pair, _ in worth]
    rest = [pair for pair in left_open if pair not in told and pair.simultaneous]
    said = []
    if worth:
        most = max(n for _, n in worth)
        names = list_rivals(best, told, len(left_open))
        said.append(
            f"Run {most} seeds of each to separate {best.name} from {names}, if they differ as "
            "observed."
        )
    if rest:
        size = format_number(max(pair.simultaneous[1] for pair in rest))
        names = list_rivals(best, rest, len(left_open))
        said.append(
            f"{best.name} is at most {size} above {names} (95 %); a decision probably takes more "
            f"than {MANY_SEEDS} seeds, so choose by cost."
        )
    if said:
        yield " ".join(said)
    if worth:
        yield from write_command([best, *(find_rival(best, pair) for pair in told)], most)
