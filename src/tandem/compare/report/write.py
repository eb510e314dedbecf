"""The HTML report: curves, scores, claims, tables and samples in one self-contained file.

The page holds its numbers as JSON and draws them itself; its content security policy forbids every
request. The live page (live.py) may send requests to its own server only.
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
from tandem.record.foreign import plain

SCRIPTS = ("base.js", "charts.js", "gallery.js", "page.js")  # each uses the earlier ones
LIVE = "live.js"
PAGE = "report.html"
TABLE = ("md", "csv", "tex")  # formats of each table beside the page
SIGNED = re.compile(r"^(# |% )?Tandem .*; configurations .*; \d+ runs", re.M)
HELD = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.S)


def write_report(found: Comparison, title: str) -> str:
    """The whole page."""
    return write_page(make_payload(found), title)


def write_page(data: Mapping[str, object], title: str, *, live: bool = False) -> str:
    files = resources.files("tandem.compare") / "page"
    scripts = (*SCRIPTS, LIVE) if live else SCRIPTS
    parts = {
        "title": html.escape(plain(title)),
        "connect": "'self'" if live else "'none'",
        "style": (files / "report.css").read_text(),
        "script": "\n".join((files / name).read_text() for name in scripts),
        # A closing script tag ends the element even inside a string.
        "data": json.dumps(data).replace("<", "\\u003c"),
    }
    # In one pass, as a title may hold the mark of another part.
    return re.sub(
        r"\{\{(\w+)\}\}", lambda mark: parts[mark[1]], (files / "report.html").read_text()
    )


def list_written(folder: Path) -> set[str]:
    """The names of the files that a report wrote beside its page, according to the page itself;
    empty if the page is not a report of Tandem."""
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
    tables = [path for path in tables if path.is_file()]
    # Written by Tandem: they have the provenance line.
    ours = [path.name for path in tables if SIGNED.search(path.read_text(errors="replace"))]
    return {*ours, *plots}
