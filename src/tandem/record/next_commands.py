"""Commands to run after a run, quoted for the shell that started it."""

from __future__ import annotations

import shlex
from pathlib import Path

from tandem.record import jsonl
from tandem.record.finished import CURVES
from tandem.record.terminal import line
from tandem.stop import command_to_resume, interpreter

LONGEST = 60  # characters of an example prompt


def next_commands(run_dir: Path, *, iterations: int) -> str:
    """Lines for the terminal. The example prompt is one that the last evaluation scored high."""
    place = shlex.quote(str(run_dir))
    python = interpreter()
    curves = run_dir / CURVES
    lines = [line("curves", str(curves))] if curves.is_file() else []
    prompt = shlex.quote(example(run_dir))
    asked = f"-- {prompt}" if prompt.startswith(("-", "'-")) else prompt
    lines += [
        line("sample", f"{python} -m tandem sample {place} {asked}"),
        line("go on", f"{command_to_resume(run_dir)} iterations={2 * iterations}"),
        line("compare", f"{python} -m tandem compare {place} OTHER_RUN"),
    ]
    return "\n".join([*lines, *lines_to_sync(run_dir)])


def lines_to_sync(run_dir: Path) -> list[str]:
    """The commands that send the run's offline copies to W&B, until they are synced."""
    kept = sorted((run_dir / "wandb").glob("offline-run-*"))
    return [line("to W&B", f"wandb sync {shlex.quote(str(folder))}") for folder in kept]


def how_to_go_on(run_dir: Path, *, stays: bool) -> str:
    """The advice for a stopped run: its resume command, or the same command if nothing was kept."""
    if not stays:
        return "give the same command again"
    return f"go on with: {command_to_resume(run_dir)}"


def example(run_dir: Path) -> str:
    """The longest of the short prompts with the highest score in the last table of samples."""
    last = max((run_dir / "samples").glob("iteration_*.jsonl"), default=None)
    rows = [] if last is None else jsonl.read(last)
    asked = [row for row in rows if row["kind"] in ("greedy", "eval")]
    known = [
        (row["reward"], len(row["prompt"]), row["prompt"]) for row in asked if _is_typeable(row)
    ]
    return max(known)[2] if known else "PROMPT"


def _is_typeable(row: dict) -> bool:
    """Whether a scored row has a short, printable prompt without tokens of a chat template."""
    text = row["prompt"]
    fits = len(text) <= LONGEST and text.isprintable() and "<|" not in text
    return fits and row["reward"] is not None
