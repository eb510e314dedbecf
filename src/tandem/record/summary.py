"""Closing table of a run: its first and last evaluation, and its cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tandem.record import jsonl

Metrics = Mapping[str, float]
Warn = Callable[[Metrics, Metrics], str | None]


def summarise(run_dir: Path, *, warn: Warn | None = None) -> str:
    """A few lines of text, from the record alone.

    `warn`: returns a warning from the first and the last evaluation, or None.
    """
    lines = jsonl.read(run_dir / "metrics.jsonl")
    evaluated = [line for line in lines if any(name.startswith("eval/") for name in line)]
    ends = evaluated[:1] + evaluated[-1:]
    table = _make_tables({f"iteration {line['iteration']}": line for line in ends}) if ends else []
    warning = warn(*ends) if warn and ends else None
    warned = [] if warning is None else [f"warning: {warning}"]
    return "\n".join(
        [*table, *warned, *_describe_cost(run_dir, lines), f"run directory: {run_dir}"]
    )


def evaluation_table(metrics: Mapping[str, float], weights: str) -> str:
    """The table of one evaluation: all prompts together, then source by source."""
    return "\n".join(_make_tables({weights: metrics}))


def format_seconds(seconds: float) -> str:
    """5.3 s, 12 min 03 s or 2 h 05 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
    )


def format_count(number: float) -> str:
    """950, 12.3k or 4.5M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"


def _make_tables(columns: Mapping[str, Metrics]) -> list[str]:
    """Evaluations by title: all prompts together, with the change if there are two, then source by
    source."""
    names = list(dict.fromkeys(n for own in columns.values() for n in own if n.startswith("eval/")))
    keys = [tuple(name.split("/", 2)[1:]) for name in names]  # (metric,) or (metric, source)
    changes = ["change"] if len(columns) == 2 else []
    rows = [["", *columns, *changes]]
    for metric in [key[0] for key in keys if len(key) == 1]:
        values = [own.get(f"eval/{metric}") for own in columns.values()]
        gap = [] if not changes else [""] if None in values else [f"{values[1] - values[0]:+.3f}"]
        rows.append([metric, *map(_format_number, values), *gap])
    split = [key for key in keys if len(key) == 2]
    if not split:
        return _rule(rows)
    metrics, sources = (list(dict.fromkeys(parts)) for parts in zip(*split, strict=True))
    titles = [title for metric in metrics for title in (metric, *("->" for _ in changes))]
    of_sources = [["", *titles]]
    for source in sources:
        values = [own.get(f"eval/{m}/{source}") for m in metrics for own in columns.values()]
        of_sources.append([source, *map(_format_number, values)])
    return _rule(rows) + _rule(of_sources)


def _format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _rule(rows: list[list[str]]) -> list[str]:
    """Columns of equal width, numbers to the right, a rule around the title."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    title, *lines = ["  ".join(map(_align, row, widths, range(len(row)))).rstrip() for row in rows]
    rule = "-" * (sum(widths) + 2 * len(widths) - 2)
    return [rule, title, rule, *lines]


def _align(cell: str, width: int, column: int) -> str:
    return cell.rjust(width) if column else cell.ljust(width)


def _describe_cost(run_dir: Path, lines: list[dict]) -> list[str]:
    timing = jsonl.read(run_dir / "timing.jsonl")
    did, took = (rows[-1] if rows else {} for rows in (lines, timing))
    if "samples" not in did or not {"time/total", "time/cpu"} <= took.keys():
        return []
    unit = "tokens" if "tokens" in did else "steps"  # a sample of text, or of a picture
    return [
        f"{did['iteration']} iterations, {format_count(did['samples'])} samples, "
        f"{format_count(did[unit])} {unit} in {format_seconds(took['time/total'])} "
        f"({format_seconds(took['time/cpu'])} of CPU)"
    ]
