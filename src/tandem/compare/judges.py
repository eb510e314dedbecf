"""The table of judges: whether rewards of weight 0 rose with the trained reward.

A change is the last evaluation of a run minus its first, with Student's interval over seeds. One or
two seeds give no interval over seeds; there it is over the held-out prompts of each run, compared
prompt by prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from tandem.compare.pairs import ALPHA
from tandem.compare.scores import Scored, rank
from tandem.compare.statistics.intervals import FEWEST, LEVEL, Difference, paired_difference
from tandem.compare.table import Table
from tandem.compare.texts import format_edges, format_number
from tandem.evaluation.reward_hacking import TRAINED, average, compare, metric_of
from tandem.record.reading.evaluations import read_ends
from tandem.record.reading.runs import Run

NAME = "judges"
TITLE = "Did the judge rise as well?"
UP, DOWN, OPEN = "rose", "fell", "not known to have changed"
BOTH = "the reward rose and the judge fell"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedVariant:
    """A judge of a variant and the trained reward."""

    variant: str
    judge: str
    runs: int
    over: str  # what the intervals are over: seeds, or prompts
    trained: Difference  # of the last evaluation and the first one
    judged: Difference
    highest: Sequence[int]  # iteration of each run at which the judge was highest
    going: bool  # whether a run of the variant is in progress, so that nothing is concluded
    among: int = 1  # rows of the table

    @property
    def is_hacked(self) -> bool:
        """Whether the reward rose and the judge fell, by intervals that hold for the whole table:
        at most 5 % of tables have any such row by chance."""
        level = 1 - ALPHA / self.among
        moves = describe_move(self.trained, level), describe_move(self.judged, level)
        return not self.going and moves == (UP, DOWN)

    @property
    def verdict(self) -> str:
        """A sentence on the two changes."""
        if self.going:
            return "not known yet: in progress"
        trained, judged = describe_move(self.trained), describe_move(self.judged)
        if trained == judged == UP:
            return "yes, both rose"
        if self.is_hacked:
            return f"no: {BOTH}"
        if (trained, judged) == (UP, DOWN):
            return f"not known: {BOTH}, but not at the level of {self.among} rows"
        if trained == UP:
            return f"not known: the reward rose, and the judge is {OPEN}"
        return f"the trained reward {'fell' if trained == DOWN else f'is {OPEN}'}"


def judge_variants(variants: Sequence[Scored]) -> list[JudgedVariant]:
    """Every judge of every variant; [] where no run names one."""
    found = [
        _judge(one, judge, known)
        for one in rank(variants)
        for judge in find_judges(one.variant.runs[0])
        if (known := [run for run in one.variant.runs if _is_measured(run, judge)])
    ]
    known = [one for one in found if one is not None]
    return [replace(one, among=len(known)) for one in known]


def find_judges(run: Run) -> list[str]:
    """The rewards that a configuration names as judges."""
    match run.config:
        case {"guards": {"judges": [*names]}}:
            return names
    return []


def table_judged(found: Sequence[JudgedVariant]) -> Table | None:
    """The table of judges; None without a judge."""
    if not found:
        return None
    return Table(
        name=NAME,
        title=f"{TITLE} Changes from the first evaluation to the last",
        columns=(
            *("variant", "judge", "runs", "trained reward", "95 %", "judge", "95 % of it"),
            *("over", "judge highest at", "did it rise"),
        ),
        rows=[
            (
                *(one.variant, one.judge, str(one.runs)),
                *(format_change(one.trained), format_edges(one.trained.interval())),
                *(format_change(one.judged), format_edges(one.judged.interval())),
                *(one.over, " ".join(map(str, one.highest)), one.verdict),
            )
            for one in found
        ],
        notes=[
            "A judge is a reward of weight 0, measured but not trained on; guards.judges lists the "
            "judges shown here. A change is claimed if its interval excludes 0. From "
            f"{FEWEST} seeds on the interval is over seeds; with fewer it is over the held-out "
            "prompts and holds for these runs only." + _explain_level(len(found))
        ],
    )


def _explain_level(rows: int) -> str:
    if rows == 1:
        return ""
    return (
        f" That a reward is hacked is claimed if both intervals at level 1 - 0.05 / {rows} exclude "
        f"0 (Bonferroni over the {rows} rows)."
    )


def describe_hacked(found: Sequence[JudgedVariant]) -> list[str]:
    """A sentence for each trained reward that rose while its judge fell."""
    return [
        f"{one.variant}: the trained reward rose by {format_number(one.trained.mean)} "
        f"{format_edges(one.trained.interval())}, and the judge {one.judge} "
        f"fell by {format_number(-one.judged.mean)} "
        f"{format_edges(tuple(-x for x in reversed(one.judged.interval())))} "
        f"(95 %, over {one.over}): the reward is hacked."
        for one in found
        if one.is_hacked
    ]


def describe_move(change: Difference, level: float = LEVEL) -> str:
    """Whether a change is known to be up or down."""
    edges = change.interval(level)
    if edges is None or edges[0] <= 0 <= edges[1]:
        return OPEN
    return UP if edges[0] > 0 else DOWN


def format_change(change: Difference) -> str:
    return f"{'+' if change.mean > 0 else ''}{format_number(change.mean)}"


def _is_measured(run: Run, judge: str) -> bool:
    return all(len(run.where(metric)) > 1 for metric in (TRAINED, metric_of(judge)))


def _judge(one: Scored, judge: str, runs: Sequence[Run]) -> JudgedVariant | None:
    curves = [run.curve(metric_of(judge)) for run in runs]
    over = "seeds" if len(runs) >= FEWEST else "prompts"
    own = metric_of(judge)
    of_metric = _over_seeds if over == "seeds" else partial(_over_prompts, judge=own)
    trained, judged = of_metric(runs, TRAINED), of_metric(runs, own)
    if trained is None or judged is None:
        return None
    return JudgedVariant(
        variant=one.name,
        judge=judge,
        runs=len(runs),
        over=over,
        trained=trained,
        judged=judged,
        highest=[int(curve.x[curve.y.argmax()]) for curve in curves],
        going=bool(one.seeds_that("running")),
    )


def _over_seeds(runs: Sequence[Run], metric: str) -> Difference:
    curves = [run.curve(metric) for run in runs]
    first, last = zip(*((curve.y[0], curve.y[-1]) for curve in curves), strict=True)
    return paired_difference(last, first)


def _over_prompts(runs: Sequence[Run], metric: str, *, judge: str) -> Difference | None:
    """The mean change of one or two runs, with its interval over the prompts for which the metric
    `judge` has a value. Two runs of the same prompts count as one whose changes are the means of
    theirs: a prompt that is hard for one is hard for the other."""
    ends = [read_ends(run, metric) for run in runs]
    if None in ends:
        return None
    if all(first["prompts"] == ends[0][0]["prompts"] for first, _ in ends):
        ends = [[average(lines, (metric, judge)) for lines in zip(*ends, strict=True)]]
    changes = [compare(*both, metric, among=judge) for both in ends]
    mean = sum(change.mean for change in changes) / len(changes)
    error = sum(change.error**2 for change in changes) ** 0.5 / len(changes)
    prompts = min(change.prompts for change in changes)
    known = prompts >= FEWEST and error > 0
    return Difference(mean=mean, error=error if known else None, df=prompts - 1, pairs=prompts)
