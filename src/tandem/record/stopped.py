"""Lines for the terminal about a run that ended early: what it left, and the next commands."""

from __future__ import annotations

from pathlib import Path

from tandem.record import jsonl
from tandem.record.checkpoint import list_published
from tandem.record.finished import CHECKPOINTS, CONFIG, METRICS
from tandem.record.next_commands import lines_to_sync
from tandem.record.terminal import line
from tandem.stop import Stop, command_to_resume

HELP = "docs/debugging.md"


def describe_stop(run_dir: Path, stop: Stop | None = None) -> str:
    """The lines below the reason of a stop; "" if the run wrote nothing.

    stop: names its change and its page; None: a signal, whose own message has the command.
    """
    if not (run_dir / CONFIG).is_file():
        return ""
    lines = [f"run directory: {run_dir}", line("saved", _describe_saved(run_dir))]
    if (samples := _newest_samples(run_dir)) is not None:
        lines.append(line("samples", str(samples)))
    if stop is not None:
        resume = command_to_resume(run_dir)
        if resume not in str(stop):
            lines.append(line("go on", f"{resume} {stop.change}".rstrip()))
        lines.append(line("help", stop.page or HELP))
    return "\n".join([*lines, *lines_to_sync(run_dir)])


def _describe_saved(run_dir: Path) -> str:
    published = list_published(run_dir / CHECKPOINTS)
    newest = published[-1][1].name if published else "none, so a resumed run begins again"
    lines = len(jsonl.read(run_dir / METRICS))
    return f"lines of {METRICS}: {lines}; newest checkpoint: {newest}"


def _newest_samples(run_dir: Path) -> Path | None:
    """The newest table of samples, or its pictures."""
    table = max((run_dir / "samples").glob("iteration_*.jsonl"), default=None)
    if table is None:
        return None
    pictures = table.with_suffix(".png")
    return pictures if pictures.is_file() else table
