"""The selection of parametrised cases for the gate."""

from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet


def each(count: int, cases: Iterable[object]) -> list[ParameterSet]:
    """Every `count`-th case for the gate; all others are marked slow."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=[] if place % count == 0 else pytest.mark.slow,
        )
        for place, case in enumerate(cases)
    ]
