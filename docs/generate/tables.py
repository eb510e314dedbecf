"""What a page asks for by a comment: `<!-- table: fields Rollout -->`, `<!-- code: PATH -->`."""

from __future__ import annotations

import functools
import re

from generate import curves
from generate.repository import ROOT, fenced
from generate.signatures import parameters

ASKED = re.compile(r"^<!-- table: (\w+) (\w+) -->$", re.M)
CODE = re.compile(r"^<!-- code: (\S+) -->$", re.M)
BATCHES = ("Transition", "Evidence", "Rollout", "CoupledBatch", "DecoupledBatch")
HOMES = {
    "Data": "tandem.data.records",
    "Step": "tandem.dynamics.kernels",
}  # of records that are not in tandem.types


@functools.cache
def meanings() -> dict[str, str]:
    """Field of the records that losses and advantages read -> the comment that says most."""
    said: dict[str, str] = {}
    for record in BATCHES:
        for one in parameters(f"tandem.types.{record}").values():
            meaning = one.meaning.partition("; None:")[0]
            said[one.name] = max(said.get(one.name, ""), meaning, key=len)
    return said


def fields(record: str) -> str:
    """The fields of a record, with their comments."""
    found = parameters(f"{HOMES.get(record, 'tandem.types')}.{record}").values()
    if not found:
        raise ValueError(f"no record is called {record}")
    said = meanings() if record in BATCHES else {}
    rows = [
        f"| `{one.name}` | {max(one.meaning or one.type, said.get(one.name, ''), key=len)} |"
        for one in found
    ]
    return "\n".join([f"| field of `{record}` | |", "|---|---|", *rows]).replace(" | None", "")


def filled(markdown: str) -> str:
    """A page with the tables and the files that it asks for."""
    makers = {"fields": fields, "ranking": curves.ranking}
    shown = CODE.sub(lambda found: fenced(ROOT / found[1]), markdown)
    return ASKED.sub(lambda found: makers[found[1]](found[2]), shown)
