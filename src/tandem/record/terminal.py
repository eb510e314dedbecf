"""Console output of a run: colour and a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

NAME = 11  # characters of the name that a line begins with
REFRESH = 4  # a second
BARS: list[Bar] = []  # the one that is shown, if there is one

RULE, TITLE, NAMED, WARNING = "dim", "bold", "bold cyan", "bold yellow"
GONE = {errno.EPIPE, errno.EIO}  # errors of a pipe without a reader, and of a closed terminal


class Output(Console):
    """Lines on stdout, while it has a reader; all numbers of a run are in its files too."""

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError as error:
            if error.errno not in GONE:
                raise
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Discard this and all further output to stdout, and to stderr if it is the same file."""
        self.quiet = True
        own = os.fstat(1)
        with open(os.devnull, "w") as nowhere, suppress(OSError):  # there may be no stderr
            os.dup2(nowhere.fileno(), 1)
            if os.path.samestat(own, os.fstat(2)):
                os.dup2(nowhere.fileno(), 2)


@cache
def console() -> Console:
    """The console of stdout at the first call; it respects NO_COLOR and TERM=dumb."""
    return Output(highlight=False, markup=False, emoji=False)


def is_terminal() -> bool:
    return sys.stdout.isatty() and console().is_terminal


def say(text: str) -> None:
    """Aligned lines `name        value`, and tables with rules."""
    console().print(style_text(text), soft_wrap=True)
    sys.stdout.flush()


def line(name: str, text: str) -> str:
    return f"{name:<{NAME}} {text}"


def style_text(text: str) -> Text:
    """The text with names and titles in bold and warnings in colour; its characters stay."""
    rows, after_rule = [], False
    for row in text.splitlines():
        is_rule = set(row) == {"-"}
        rows.append(Text(row, style=RULE if is_rule else TITLE if after_rule else ""))
        if row[:NAME].strip() and row[NAME : NAME + 1] == " " and row[NAME + 1 : NAME + 2].strip():
            rows[-1].stylize(NAMED, 0, NAME)
        if row.startswith("warning"):
            rows[-1].stylize(WARNING)
        after_rule = is_rule and not after_rule
    return Text("\n").join(rows)


@contextmanager
def doing(name: str, text: str) -> Iterator[None]:
    """Show an activity until it is done: beside the bar, or on its own line."""
    if BARS:
        bar, before = BARS[-1], BARS[-1].doing
        bar.doing = f"{name} {text}"
        try:
            yield
        finally:
            bar.doing = before
    else:  # a line that stays: below it a download may show a bar of its own
        say(line(name, text))
        yield


def starting(text: str) -> AbstractContextManager:
    """A spinner on a terminal, removed at the end of the context."""
    if not is_terminal():
        return nullcontext()
    return console().status(Text(line("starting", text)), refresh_per_second=REFRESH)


class Bar:
    """Two lines at the bottom of a terminal: the progress of a run, and its numbers."""

    def __init__(self, doing: str, *, total: int, done: int) -> None:
        self.doing, self.total, self.done = doing, total, done
        self.ahead = self.numbers = ""
        self._live = Live(self, console=console(), refresh_per_second=REFRESH)

    def __rich__(self) -> Group:
        row = Table.grid(padding=(0, 2))
        share = ProgressBar(total=self.total, completed=self.done, width=30)
        count = f"{self.done:>{len(str(self.total))}}/{self.total}"
        row.add_row(share, Text(count, style=TITLE), self.ahead, Text(self.doing, style=NAMED))
        return Group(row, Text(self.numbers, no_wrap=True, overflow="ellipsis"))

    def open(self) -> None:
        """Show the bar."""
        BARS.append(self)
        self._live.start()

    def close(self) -> None:
        """Take the bar away."""
        self._live.stop()
        BARS.remove(self)


class Warnings(logging.StreamHandler):
    """Writes to stderr; on a terminal above the bar, and in colour."""

    def emit(self, record: logging.LogRecord) -> None:
        if is_terminal() and sys.stderr.isatty():
            console().print(Text(self.format(record), style=WARNING), soft_wrap=True)
        else:
            super().emit(record)
