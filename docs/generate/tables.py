"""What a page asks for by a comment: `<!-- table: fields Rollout -->`, `<!-- code: PATH -->`."""

from __future__ import annotations

import re

from generate import curves
from generate.repository import ROOT, fenced
from generate.signatures import parameters

ASKED = re.compile(r"^<!-- table: (\w+) (\w+) -->$", re.M)
CODE = re.compile(r"^<!-- code: (\S+) -->$", re.M)
HOMES = {
    "Data": "tandem.data.records",
    "Step": "tandem.dynamics.kernels",
}  # of records that are not in tandem.types


def fields(record: str) -> str:
    """The fields of a record, with their comments."""
    rows = [
        f"| `{one.name}` | {one.meaning.replace('|', chr(92) + '|') or one.type} |"
        for one in parameters(f"{HOMES.get(record, 'tandem.types')}.{record}").values()
    ]
    if not rows:
        raise ValueError(f"no record is called {record}")
    return "\n".join([f"| `{record}` | |", "|---|---|", *rows])


def filled(markdown: str) -> str:
    """A page with the tables and the files that it asks for."""
    makers = {"fields": fields, "ranking": curves.ranking}
    shown = CODE.sub(lambda found: fenced(ROOT / found[1]), markdown)
    return ASKED.sub(lambda found: makers[found[1]](found[2]), shown)
