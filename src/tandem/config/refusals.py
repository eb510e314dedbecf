"""Handlers that end a program with one line if its command line cannot run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tandem.config.names import ConfigError

REFUSED = 2  # exit code of a command line that cannot run


@contextmanager
def refusals() -> Iterator[None]:
    """A context in which a ConfigError ends the process with its message and exit code REFUSED."""
    try:
        yield
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(REFUSED)


@contextmanager
def refusing() -> Iterator[None]:
    """A context that converts a ValueError of building or loading to a ConfigError."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from error
