"""The closing table of a run: what evaluation found first and last, and what it took."""

from __future__ import annotations

from pathlib import Path

from tandem import jsonl


def summary(run_dir: Path) -> str:
    """A few lines of text, from the record alone."""
    lines = jsonl.read(run_dir / "metrics.jsonl")
    evaluated = [line for line in lines if any(name.startswith("eval/") for name in line)]
    table = _table(evaluated[0], evaluated[-1]) if evaluated else []
    return "\n".join([*table, *_spent(run_dir, lines), f"run directory: {run_dir}"])


def clock(seconds: float) -> str:
    """5.3 s, 12 min 03 s or 2 h 05 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
    )


def amount(number: float) -> str:
    """950, 12.3k or 4.5M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"


def _table(first: dict, last: dict) -> list[str]:
    names = [name for name in {**first, **last} if name.startswith("eval/")]
    title = ("", f"iteration {first['iteration']}", f"iteration {last['iteration']}", "change")
    rows = [
        (name.removeprefix("eval/"), *_cells(first.get(name), last.get(name))) for name in names
    ]
    widths = [max(len(row[i]) for row in [title, *rows]) for i in range(4)]
    rule = "-" * (sum(widths) + 6)
    return [rule, _aligned(title, widths), rule, *(_aligned(row, widths) for row in rows), rule]


def _cells(first: float | None, last: float | None) -> tuple[str, str, str]:
    change = "" if first is None or last is None else f"{last - first:+.3f}"
    return _number(first), _number(last), change


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
    return "  ".join([row[0].ljust(len(first)), *others])


def _spent(run_dir: Path, lines: list[dict]) -> list[str]:
    timing = jsonl.read(run_dir / "timing.jsonl")
    if not lines or not timing:
        return []
    did, took = lines[-1], timing[-1]
    return [
        f"{did['iteration']} iterations, {amount(did['samples'])} samples, "
        f"{amount(did['tokens'])} tokens in {clock(took['time/total'])} "
        f"({clock(took['time/cpu'])} of CPU)"
    ]
