"""The end of a program whose command line cannot run: one line, and an exit code of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tandem.config.names import ConfigError

REFUSED = 2  # exit code of a command line that cannot run


@contextmanager
def refusals() -> Iterator[None]:
    """A ConfigError ends the process with its one line, not with a traceback."""
    try:
        yield
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(REFUSED)


@contextmanager
def refusing() -> Iterator[None]:
    """Print what building and loading find wrong as one line, without a traceback."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from error
