"""kill -9 at any moment, then resume=: bit for bit equal to an uninterrupted run."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from kills import RUNS, differences, kill_and_resume, kills, whole_run


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Callable[[str], tuple[Path, float]]:
    """An uninterrupted run, and the CPU-seconds of its training."""

    @functools.cache
    def of(world: str) -> tuple[Path, float]:
        folder = tmp_path_factory.mktemp(world) / "run"
        return folder, whole_run(world, folder)

    return of


@pytest.mark.system
def test_a_run_that_is_killed_after_a_checkpoint_resumes_to_the_same_bits(straight, tmp_path):
    whole, _ = straight("tokens")
    alive = kill_and_resume("tokens", tmp_path / "run", 0.0, after="checkpoints/step_000002")
    assert alive
    assert differences(tmp_path / "run", whole) == ()


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("world", RUNS)
def test_a_run_that_is_killed_at_any_of_twenty_moments_resumes_to_the_same_bits(
    straight, tmp_path, world
):
    whole, seconds = straight(world)
    alive = 0
    for number, kill in enumerate(kills(world, 20, whole, seconds, tmp_path)):
        assert kill.differs == (), f"kill {number}"
        alive += kill.alive
    assert alive > 10
