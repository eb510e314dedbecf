"""The dry run of a sweep: every combination is checked, and nothing is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tandem.config import ConfigError, check, compose
from tandem.sweep import status

MEANT: Mapping[status.State, str] = {
    "waiting": "would start",
    "stopped": "would go on",
    "failed": "would go on",
    "finished": "there already",
    "running": "is running",
}


def rehearse(folder: Path, jobs: Mapping[str, Sequence[str]] | None) -> int:
    """Print a line for each run. How many could not run. `jobs`: None of a search."""
    if jobs is None:
        print("a search: which runs there will be is decided while it goes on")
        return 0
    said = [_said(folder / name, overrides) for name, overrides in jobs.items()]
    for number, (name, (_, text)) in enumerate(zip(jobs, said, strict=True), start=1):
        print(f"{number} of {len(jobs)}  {name}: {text}")
    return sum(refused for refused, _ in said)


def _said(folder: Path, overrides: Sequence[str]) -> tuple[bool, str]:
    """Whether it could not run, and what would become of it."""
    found = status.read_job(folder, overrides)
    if found.state == "taken":
        return True, f"would be left out: {found.reason}"
    try:
        check(compose(overrides))
    except ConfigError as error:
        return True, f"would be refused: {error}"
    return False, MEANT[found.state]
