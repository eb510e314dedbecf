"""The terminal output of a comparison: the headline, and tables fitted to the width."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from tandem.compare.comparison import Comparison
from tandem.compare.headline import write_headline, write_meta, write_next, write_warnings
from tandem.compare.text_table import fill, fit_table
from tandem.record.foreign import plain


def show_comparison(found: Comparison) -> str:
    """Headline, other differences, what to run next, and every table."""
    width = shutil.get_terminal_size().columns
    lines = [*show_summary(found, width)]
    return "\n\n".join([*lines, *(fit_table(table, width) for table in found.tables)])


def show_summary(found: Comparison, width: int) -> Iterator[str]:
    yield fill(write_headline(found), width)
    yield from (fill(line, width) for line in write_warnings(found))
    sentence, *commands = write_next(found) or [""]
    if sentence:  # a command is not wrapped, so that it can be copied
        yield "\n".join(
            [fill(f"Next: {sentence}", width), *(f"    {plain(one)}" for one in commands)]
        )
    yield fill(write_meta(found), width)
