"""Which of many alike cases the gate runs."""

from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet


def each(count: int, cases: Iterable[object]) -> list[ParameterSet]:
    """Each `count`-th case as the gate's, by its place; all others as those of long tests."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=[] if place % count == 0 else pytest.mark.slow,
        )
        for place, case in enumerate(cases)
    ]
