"""Runs that a sweep planned and that left no record: a search for records would not miss them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tandem.record.foreign import plain, read_object, reason_of
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
    try:
        folder, names = plan.parent, read_planned(plan)
        files = (CONFIG, MANIFEST)
        lost = [name for name in names if not all((folder / name / x).is_file() for x in files)]
    except (ValueError, OSError) as error:  # the runs can be compared without their plan
        return plain(f"left out: the plan {plan} ({reason_of(error)})")
    if not lost:
        return ""
    more = f" and {len(lost) - MOST_NAMED} more" if len(lost) > MOST_NAMED else ""
    listed = f"{', '.join(lost[:MOST_NAMED])}{more}"
    return plain(f"{folder.name} planned {len(names)} runs; {len(lost)} have no record: {listed}")


def read_planned(plan: Path) -> list[str]:
    """Folder names of all planned runs, and of those that a search started.

    Raises ValueError for a plan that cannot be read.
    """
    jobs = read_object(plan, "jobs")["jobs"] or {}
    if not isinstance(jobs, dict) or not all(x.isprintable() and Path(x).name == x for x in jobs):
        raise ValueError(f"{plan.name}: jobs must be a mapping by names of folders")
    started = sorted(path.parent.name for path in plan.parent.glob(f"*/{JOB}"))
    return list(dict.fromkeys([*jobs, *started]))
