"""Reason why a process ended, in one line, from its exit code and its output."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from tandem.config.refusals import REFUSED
from tandem.record.secrets import scrub
from tandem.stop import INTERRUPTED, STALLED, STOPPED

LONGEST = 300  # characters
LOOKED_AT = 2000  # bytes at the end of a log
# The line that gives the reason; other lines may follow it.
REASONS = {
    1: re.compile(r"(\[rank\d+\]: )?[\w.]+(Error|Exception|Stop|Away)\b"),
    STOPPED: re.compile("stopped: "),
    STALLED: re.compile("stalled: "),
}


def reason_of(code: int, said: str) -> str | None:
    """`code`: as in subprocess, negative for a signal; `said`: the output. None: it succeeded."""
    if code == 0:
        return None
    if code == INTERRUPTED:
        return "it was asked to stop"
    if code < 0:
        return _describe_signal(signal.Signals(-code))
    lines = [line.strip() for line in re.split(r"[\r\n]+", said) if line.strip()]
    given = [line for line in lines if code in REASONS and REASONS[code].match(line)]
    last = (given or lines)[-1:] or [f"exit code {code}"]
    told = scrub(last[0], os.environ)[:LONGEST]
    return f"refused: {told}" if code == REFUSED else told


def _describe_signal(by: signal.Signals) -> str:
    why = ", which the system sends when memory runs out" if by is signal.SIGKILL else ""
    return f"killed by {by.name}{why}"


def last_line(log: Path) -> str | None:
    """The last line of a run's log that is not blank, without secrets; None: there is none."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOOKED_AT))
        lines = file.read().decode(errors="replace").splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), None)
    return None if last is None else scrub(last, os.environ)
