"""Closing table of a run: its first and last evaluation, and its cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tandem.record import jsonl

Warn = Callable[[Mapping[str, float], Mapping[str, float]], str | None]


def summarise(run_dir: Path, *, warn: Warn | None = None) -> str:
    """A few lines of text, from the record alone.

    `warn`: returns a warning from the first and the last evaluation, or None.
    """
    lines = jsonl.read(run_dir / "metrics.jsonl")
    evaluated = [line for line in lines if any(name.startswith("eval/") for name in line)]
    table = _make_tables(evaluated[0], evaluated[-1]) if evaluated else []
    warning = warn(evaluated[0], evaluated[-1]) if warn and evaluated else None
    warned = [] if warning is None else [f"warning: {warning}"]
    return "\n".join(
        [*table, *warned, *_describe_cost(run_dir, lines), f"run directory: {run_dir}"]
    )


def evaluation_table(metrics: Mapping[str, float], weights: str) -> str:
    """The table of one evaluation: all prompts together, then source by source."""
    whole = {name: value for name, value in metrics.items() if name.count("/") == 1}
    rows = [["", weights]]
    rows += [[name.removeprefix("eval/"), _format_number(value)] for name, value in whole.items()]
    return "\n".join([*_rule(rows), *_list_sources(metrics)])


def _list_sources(metrics: Mapping[str, float]) -> list[str]:
    split = [name.split("/", 2)[1:] for name in metrics if name.count("/") == 2]
    if not split:
        return []
    titles, sources = (list(dict.fromkeys(parts)) for parts in zip(*split, strict=True))
    rows = [["", *titles]]
    for source in sources:
        found = [metrics.get(f"eval/{title}/{source}") for title in titles]
        rows.append([source, *map(_format_number, found)])
    return _rule(rows)


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


def _make_tables(first: dict, last: dict) -> list[str]:
    """All prompts together, then source by source."""
    names = [name for name in {**first, **last} if name.startswith("eval/")]
    whole = [name for name in names if name.count("/") == 1]
    when = [f"iteration {line['iteration']}" for line in (first, last)]
    rows = [["", *when, "change"], *(_make_row(name, first, last) for name in whole)]
    return _rule(rows) + _group_by_source(
        [name for name in names if name not in whole], first, last
    )


def _make_row(name: str, first: dict, last: dict) -> list[str]:
    pair = [line.get(name) for line in (first, last)]
    change = "" if None in pair else f"{pair[1] - pair[0]:+.3f}"
    return [name.removeprefix("eval/"), *map(_format_number, pair), change]


def _group_by_source(names: list[str], first: dict, last: dict) -> list[str]:
    """names: eval/metric/source."""
    if not names:
        return []
    split = [name.split("/", 2)[1:] for name in names]
    metrics, sources = (list(dict.fromkeys(parts)) for parts in zip(*split, strict=True))
    rows = [["", *(title for metric in metrics for title in (metric, "->"))]]
    for source in sources:
        pairs = [(line.get(f"eval/{m}/{source}")) for m in metrics for line in (first, last)]
        rows.append([source, *map(_format_number, pairs)])
    return _rule(rows)


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
