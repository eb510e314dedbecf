"""Files and tables that pages show: `make shown` writes them behind `<!-- code: PATH -->` and
`<!-- table: fields Rollout -->`, up to `<!-- end -->`, so that a page is whole wherever it is read.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from generate import curves
from generate.repository import DOCS, ROOT, fence
from generate.signatures import Parameter, parameters

SHOWN = re.compile(r"^<!-- (code|table): (.+) -->\n(?:.*\n)*?<!-- end -->$", re.M)
SHAPE = re.compile(r"^\[[^]]*\]( (bool|int\d+|float\d+|nats))?")  # what a bare comment is made of
BATCHES = ("Transition", "Evidence", "Rollout", "CoupledBatch", "DecoupledBatch")
HOMES = {
    "Answers": "tandem.policies.language.records",
    "Data": "tandem.data.records",
    "Step": "tandem.dynamics.kernels",
}  # of records that are not in tandem.types


@functools.cache
def meanings() -> dict[str, str]:
    """Field of the records that losses and advantages read -> the comment that says most."""
    said: dict[str, str] = {}
    for record in BATCHES:
        for one in parameters(f"tandem.types.{record}").values():
            meaning = re.sub(r"(^|; )None:.*", "", one.meaning)
            said[one.name] = max(said.get(one.name, ""), meaning, key=len)
    return said


def fields(record: str) -> str:
    """The fields of a record, with their comments."""
    found = parameters(f"{HOMES.get(record, 'tandem.types')}.{record}").values()
    if not found:
        raise ValueError(f"no record is called {record}")
    said = meanings() if record in BATCHES else {}
    rows = [f"| `{one.name}` | {_own(one) or said.get(one.name) or _bare(one)} |" for one in found]
    return "\n".join([f"| field of `{record}` | |", "|---|---|", *rows])


def _bare(field: Parameter) -> str:
    return field.meaning or field.type.replace(" | None", "")


def _own(field: Parameter) -> str:
    """Its comment, if that says more than a shape."""
    return field.meaning if SHAPE.sub("", field.meaning) else ""


def fill(markdown: str) -> str:
    """A page with the files and tables that it asks for, as they are now."""
    return SHOWN.sub(_show, markdown)


def _show(found: re.Match) -> str:
    kind, asked = found.groups()
    name, _, argument = asked.partition(" ")
    tables = {"fields": fields, "ranking": curves.ranking}
    content = fence(ROOT / asked) if kind == "code" else tables[name](argument)
    return f"<!-- {kind}: {asked} -->\n\n{content.strip()}\n\n<!-- end -->"


def pages() -> list[Path]:
    return sorted((ROOT / DOCS).rglob("*.md"))


def main() -> None:
    for page in pages():
        before = page.read_text(encoding="utf-8")
        if (after := fill(before)) != before:
            page.write_text(after, encoding="utf-8")
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
