"""A comparison in the terminal: its arguments, the headline, and tables fitted to the width."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from tandem.compare.comparison import Comparison
from tandem.compare.configuration import ABSENT, KEY
from tandem.compare.headline import write_headline, write_meta, write_next, write_warnings
from tandem.compare.table import Table
from tandem.compare.text_table import fill, fit_table
from tandem.record.foreign import plain

MOST_KEYS = 24  # of a table of differences in the terminal


def split_options(
    arguments: Sequence[str], known: Collection[str]
) -> tuple[list[str], Mapping[str, str]]:
    """Places and options. An argument without =, or one that exists as a path, is a place.

    Raises ValueError for an option that is not `known`, is empty or given twice, and for a flag.
    """
    refuse_flags(arguments, known)
    places = [text for text in arguments if "=" not in text or Path(text).exists()]
    options: dict[str, str] = {}
    for text in arguments:
        if text in places:
            continue
        name, _, value = text.partition("=")
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise ValueError(f"unknown option {name!r}: {hint}")
        if not value:
            raise ValueError(f"{text} is empty: give a value, or leave it out")
        if name in options:
            raise ValueError(f"{name}= is given twice, as {name}={options[name]} and {text}")
        options[name] = value
    return places, options


def refuse_flags(arguments: Sequence[str], known: Collection[str]) -> None:
    """Raise ValueError for an argument with dashes that is no path, with the nearest option."""
    spelled = {"help": "--help"} | {name: f"{name}=..." for name in known}
    for text in arguments:
        if text.startswith("-") and not Path(text).exists():
            flag = text.partition("=")[0]
            near = get_close_matches(flag.lstrip("-"), spelled, n=1)
            listed = ", ".join(spelled.values())
            hint = f"did you mean {spelled[near[0]]}?" if near else f"there are {listed}"
            raise ValueError(f"unknown flag {flag!r}: {hint}")


def show_comparison(found: Comparison) -> str:
    """Headline, other differences, what to run next, and every table, that of many differences
    cut."""
    width = shutil.get_terminal_size().columns
    lines = [*show_summary(found, width)]
    return "\n\n".join([*lines, *(fit_table(cut(table), width) for table in found.tables)])


def cut(table: Table) -> Table:
    """A long table of keys, cut to those that most variants have."""
    more = len(table.rows) - MOST_KEYS
    if table.columns[0] != KEY or more <= 0:
        return table
    ranked = sorted(range(len(table.rows)), key=lambda i: table.rows[i].count(ABSENT))
    rows = [table.rows[i] for i in sorted(ranked[:MOST_KEYS])]
    note = f"{more} more keys differ; out=FOLDER writes all of them."
    return replace(table, rows=rows, notes=[*table.notes, note])


def show_summary(found: Comparison, width: int) -> Iterator[str]:
    yield fill(write_headline(found), width)
    yield from (fill(line, width) for line in write_warnings(found))
    sentence, *commands = write_next(found) or [""]
    if sentence:  # a command is not wrapped, so that it can be copied
        yield "\n".join(
            [fill(f"Next: {sentence}", width), *(f"    {plain(one)}" for one in commands)]
        )
    yield fill(write_meta(found), width)
