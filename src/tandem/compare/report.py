"""One file to look at: curves, scores, claims, tables and samples. Nothing is fetched for it.

The page holds its numbers as JSON and draws them itself; its policy forbids it every request.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from tandem.compare.bands import Judged
from tandem.compare.comparison import CAVEAT, SMALL, Pair, Scored
from tandem.compare.gallery import gallery
from tandem.compare.learning import learning, mean_line
from tandem.compare.provenance import provenance
from tandem.compare.runs import AXES, Run
from tandem.compare.tables import Table

BESIDE = ("eval/reward", "reward/mean", "actor/entropy", "response/length", "eval/diversity")
DIGITS = 6  # of a number in the page


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a report is made of."""

    metric: str
    axis: str  # that the curves are first seen on
    variants: Sequence[Scored]
    pairs: Sequence[Pair]
    tables: Sequence[Table]
    judged: Sequence[Judged] = ()  # beside what an experiment expects

    @property
    def runs(self) -> list[Run]:
        return [run for one in self.variants for run in one.variant.runs]


def report(found: Comparison, title: str) -> str:
    """The whole page."""
    page = resources.files("tandem.compare") / "page"
    parts = {
        "title": html.escape(title),
        "style": (page / "report.css").read_text(),
        "script": (page / "report.js").read_text(),
        "provenance": html.escape(provenance(found.runs)),
        # What ends a script element ends it inside a string too.
        "data": json.dumps(payload(found)).replace("<", "\\u003c"),
    }
    text = (page / "report.html").read_text()
    for name in ("title", "style", "provenance", "script", "data"):
        text = text.replace(f"{{{{{name}}}}}", parts[name])
    return text


def payload(found: Comparison) -> dict[str, object]:
    metrics = measured(found)
    axes = [
        axis for axis in AXES if any(len(run.curve(found.metric, axis).x) for run in found.runs)
    ]
    return {
        "metric": found.metric,
        "metrics": metrics,
        "axes": axes,
        "axis": found.axis if found.axis in axes else axes[0],
        "variants": [of_variant(one, metrics, axes) for one in found.variants],
        "verdicts": claims(found),
        "tables": [
            {"title": t.title, "columns": t.columns, "rows": t.rows, "notes": t.notes}
            for t in found.tables
        ],
        "gallery": gallery([one.variant for one in found.variants]),
    }


def measured(found: Comparison) -> list[str]:
    """The metric, and what people look at beside it where all runs have it."""
    names = [run.names() for run in found.runs]
    beside = [name for name in BESIDE if all(name in own for own in names)]
    return list(dict.fromkeys([found.metric, *beside]))


def of_variant(one: Scored, metrics: Sequence[str], axes: Sequence[str]) -> dict[str, object]:
    seeds = [seed for seed in one.variant.seeds if seed not in one.without]
    return {
        "name": one.variant.name,
        "mean": one.estimate.mean,
        "low": one.estimate.low,
        "high": one.estimate.high,
        "scores": [
            {"seed": seed, "score": score, "died": seed in one.died}
            for seed, score in zip(seeds, one.scores, strict=True)
        ],
        "curves": {
            metric: {axis: drawn(one.variant.runs, metric, axis) for axis in axes}
            for metric in metrics
        },
    }


def drawn(runs: Sequence[Run], metric: str, axis: str) -> Mapping[str, object] | None:
    """The mean as (x, y, low, high), and the points of each seed as far as it lived."""
    curves = learning(runs, metric, axis)
    if curves is None:
        return None
    seeds = [
        {
            "points": [
                [rounded(x), rounded(y)] for x, y in zip(curves.x[own], line[own], strict=True)
            ],
            "died": not bool(own[-1]),
        }
        for line, own in zip(curves.y, curves.lived, strict=True)
    ]
    mean = [[rounded(value) for value in point] for point in mean_line(curves)]
    return {"mean": mean, "seeds": seeds}


def rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def claims(found: Comparison) -> list[dict[str, object]]:
    """A sentence for each pair, those that claim something first; then what n cannot see."""
    said = [
        {
            "text": pair.verdict
            if pair.distinct
            else f"{pair.better.variant.name} and {pair.other.variant.name}: {pair.verdict}",
            "claim": pair.distinct,
        }
        for pair in sorted(found.pairs, key=lambda pair: not pair.distinct)
    ]
    few = any(len(one.scores) <= SMALL for one in found.variants)
    return said + ([{"text": CAVEAT, "claim": False}] if few else [])
