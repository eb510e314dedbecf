"""One file to look at: curves, scores, claims, tables and samples. Nothing is fetched for it.

The page holds its numbers as JSON and draws them itself; its policy forbids it every request. The
one that is served (live.py) may ask its own server, and nobody else.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from tandem.compare.bands import Judged
from tandem.compare.comparison import Pair, Scored
from tandem.compare.expected_bands import Experiment
from tandem.compare.multitask import Across
from tandem.compare.report.payload import payload
from tandem.compare.table import Table
from tandem.record.reading.runs import Run

SCRIPTS = ("base.js", "charts.js", "gallery.js", "page.js")  # in this order, each uses those before
LIVE = "live.js"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a report is made of."""

    metric: str
    axis: str  # that the curves are first seen on
    variants: Sequence[Scored]
    pairs: Sequence[Pair]
    tables: Sequence[Table]
    across: Sequence[Across] = ()  # variants over many tasks
    experiment: Experiment | None = None
    judged: Sequence[Judged] = ()  # every run, beside what the experiment expects
    unrecorded: Sequence[str] = ()  # runs that were planned and are not there, in sentences

    @property
    def runs(self) -> list[Run]:
        return [run for one in self.variants for run in one.variant.runs]


def report(found: Comparison, title: str) -> str:
    """The whole page."""
    return page(payload(found), title)


def page(data: Mapping[str, object], title: str, *, live: bool = False) -> str:
    files = resources.files("tandem.compare") / "page"
    scripts = (*SCRIPTS, LIVE) if live else SCRIPTS
    parts = {
        "title": html.escape(title),
        "connect": "'self'" if live else "'none'",
        "style": (files / "report.css").read_text(),
        "script": "\n".join((files / name).read_text() for name in scripts),
        # What ends a script element ends it inside a string too.
        "data": json.dumps(data).replace("<", "\\u003c"),
    }
    text = (files / "report.html").read_text()
    for name in ("title", "connect", "style", "script", "data"):
        text = text.replace(f"{{{{{name}}}}}", parts[name])
    return text
