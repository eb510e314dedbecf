"""Runs that a sweep planned and that left no record: a search for records would not miss them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tandem.record.foreign import JSON_BYTES, UNREADABLE, read_bytes
from tandem.record.reading.runs import CONFIG, MANIFEST
from tandem.record.reading.states import JOB

PLAN = "sweep.json"
MOST_NAMED = 10


def list_unrecorded(places: Iterable[str | Path]) -> list[str]:
    """A sentence for each sweep at or below these places that lacks runs."""
    plans = dict.fromkeys(
        plan.resolve() for place in places for plan in sorted(Path(place).rglob(PLAN))
    )
    return [said for plan in plans if (said := _describe_missing(plan))]


def _describe_missing(plan: Path) -> str:
    """A sentence on the missing runs; "" if there are none."""
    folder, names = plan.parent, read_planned(plan)
    files = (CONFIG, MANIFEST)
    lost = [name for name in names if not all((folder / name / x).is_file() for x in files)]
    if not lost:
        return ""
    more = f" and {len(lost) - MOST_NAMED} more" if len(lost) > MOST_NAMED else ""
    listed = f"{', '.join(lost[:MOST_NAMED])}{more}"
    return f"{folder.name} planned {len(names)} runs; {len(lost)} have no record: {listed}"


def read_planned(plan: Path) -> list[str]:
    """Folder names of all planned runs, and of those that a search started.

    Raises ValueError for a plan that cannot be read.
    """
    try:
        jobs = list(json.loads(read_bytes(plan, JSON_BYTES))["jobs"] or ())
    except UNREADABLE as error:
        raise ValueError(f"{plan} cannot be read as the plan of a sweep ({error})") from None
    started = sorted(path.parent.name for path in plan.parent.glob(f"*/{JOB}"))
    return list(dict.fromkeys([*jobs, *started]))
