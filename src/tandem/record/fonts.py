"""The letters of a figure: prompts and names of variants may be in any script."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def boxes_for_missing_letters() -> Iterator[None]:
    """A block in which matplotlib draws a letter that its font lacks as a box, without a warning
    for each."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        yield
