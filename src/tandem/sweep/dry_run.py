"""The dry run of a sweep: every combination is checked, and nothing is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tandem.config import ConfigError, check, compose
from tandem.sweep import status

MEANT: Mapping[status.State, str] = {
    "waiting": "would start",
    "stopped": "would continue",
    "failed": "would continue",
    "finished": "already finished",
    "running": "is running",
}


def rehearse(folder: Path, jobs: Mapping[str, Sequence[str]] | None) -> int:
    """Print a line for each run and return how many cannot run. `jobs`: None for a search."""
    if jobs is None:
        print("a search chooses its runs as it proceeds: there are none to check yet")
        return 0
    said = [_describe_job(folder / name, overrides) for name, overrides in jobs.items()]
    for number, (name, (_, text)) in enumerate(zip(jobs, said, strict=True), start=1):
        print(f"{number} of {len(jobs)}  {name}: {text}")
    return sum(refused for refused, _ in said)


def _describe_job(folder: Path, overrides: Sequence[str]) -> tuple[bool, str]:
    """Whether the run is impossible, and the text of its line."""
    found = status.read_job(folder, overrides)
    if found.state == "taken":
        return True, f"would be skipped: {found.reason}"
    try:
        check(compose(overrides))
    except ConfigError as error:
        return True, f"would be refused: {error}"
    return False, MEANT[found.state]
