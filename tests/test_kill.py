"""kill -9 at any moment, then resume=: bit for bit equal to an uninterrupted run."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from kills import RUNS, kills, whole_run

KILLS = [
    pytest.param("tokens", 1, id="tokens: 1 kill"),
    *(pytest.param(world, 20, id=f"{world}: 20 kills", marks=pytest.mark.slow) for world in RUNS),
]


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Callable[[str], tuple[Path, float]]:
    """An uninterrupted run, and its training time."""

    @functools.cache
    def of(world: str) -> tuple[Path, float]:
        folder = tmp_path_factory.mktemp(world) / "run"
        return folder, whole_run(world, folder)

    return of


@pytest.mark.system
@pytest.mark.parametrize(("world", "count"), KILLS)
def test_a_killed_run_resumes_to_the_same_bits(straight, tmp_path, world, count):
    whole, seconds = straight(world)
    alive = 0
    for number, kill in enumerate(kills(world, count, whole, seconds, tmp_path)):
        assert kill.differs == (), f"kill {number}"
        alive += kill.alive
    assert alive > count // 2
