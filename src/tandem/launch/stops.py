"""Handler that ends the process of a run: the reason, what the run left, and the next commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tandem.config.refusals import refusals
from tandem.launch.people import say
from tandem.record.stopped import describe_stop
from tandem.stop import INTERRUPTED, STOPPED, Stop


@contextmanager
def stops(run_dir: Path) -> Iterator[None]:
    """A block in which expected errors end the process with one line and their exit code; below
    it are the next commands of the run in `run_dir`."""
    with refusals():
        try:
            yield
        except Stop as stop:
            print(f"stopped: {stop}", file=sys.stderr, flush=True)
            _tell(describe_stop(run_dir, stop))
            sys.exit(STOPPED)
        except SystemExit as ended:
            if ended.code == INTERRUPTED:
                _tell(describe_stop(run_dir))
            raise


def _tell(lines: str) -> None:
    if lines:
        say(lines)
