"""One file to look at: curves, scores, claims, tables and samples. Nothing is fetched for it.

The page holds its numbers as JSON and draws them itself; its policy forbids it every request. The
one that is served (live.py) may ask its own server, and nobody else.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from importlib import resources

from tandem.compare.comparison import Comparison
from tandem.compare.report.payload import make_payload

SCRIPTS = ("base.js", "charts.js", "gallery.js", "page.js")  # in this order, each uses those before
LIVE = "live.js"


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
