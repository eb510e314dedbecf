"""One file to look at: curves, scores, claims, tables and samples. Nothing is fetched for it.

The page holds its numbers as JSON and draws them itself; its policy forbids it every request. The
one that is served (live.py) may ask its own server, and nobody else.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from tandem.compare.comparison import Comparison
from tandem.compare.report.payload import make_payload

SCRIPTS = ("base.js", "charts.js", "gallery.js", "page.js")  # in this order, each uses those before
LIVE = "live.js"
PAGE = "report.html"
TABLE = ("md", "csv", "tex")  # as which each table is written beside the page
SIGNED = re.compile(r"^(# |% )?Tandem .*; configurations .*; \d+ runs", re.M)
HELD = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.S)


def write_report(found: Comparison, title: str) -> str:
    """The whole page."""
    return write_page(make_payload(found), title)


def write_page(data: Mapping[str, object], title: str, *, live: bool = False) -> str:
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


def list_written(folder: Path) -> set[str]:
    """The names of the files beside the page of a report, by what the page itself holds. A page of
    somebody else's has none."""
    page = folder / PAGE
    held = HELD.search(page.read_text(errors="replace")) if page.is_file() else None
    if held is None:
        return set()
    try:
        data = json.loads(held[1])
        names = [str(table["name"]) for table in data["tables"]]
    except (ValueError, TypeError, KeyError):
        return set()
    plots = ["curves.pdf", "scores.pdf", *(["profiles.pdf"] if data.get("profiles") else [])]
    tables = [folder / f"{n}.{end}" for n in names if re.fullmatch(r"\w+", n) for end in TABLE]
    ours = [path.name for path in tables if path.is_file() and _is_signed(path)]
    return {*ours, *plots}


def _is_signed(path: Path) -> bool:
    """Whether a file has the line of `provenance`, and is not another one of that name."""
    return SIGNED.search(path.read_text(errors="replace")) is not None
