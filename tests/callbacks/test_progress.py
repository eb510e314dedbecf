"""The progress line of a run."""

from types import SimpleNamespace

import pytest
from toy_run import SETTINGS

from tandem.training.callbacks.progress import Progress

KNOWN = {"reward/mean": 0.5, "eval/reward": 0.25, "perf/pictures_per_second": 9.0}


def progress(latest, at=30, job="train"):
    latest_at = dict.fromkeys(latest, at)
    return Progress(SimpleNamespace(latest=latest, latest_at=latest_at, job=job), SETTINGS)


def at_iteration(iteration, total=150):
    return SimpleNamespace(
        policy=SimpleNamespace(unit="pictures"),
        iteration=iteration,
        plan=SimpleNamespace(iterations=total),
    )


def numbers(latest, at=30):
    return progress(latest, at)._numbers(at_iteration(31))


def test_the_held_out_reward_stands_where_nothing_is_right_or_wrong():
    assert "held-out reward 0.250" in numbers(KNOWN)
    judged = numbers({**KNOWN, "eval/accuracy": 0.75})
    assert "accuracy 0.750" in judged
    assert "held-out" not in judged


def test_what_an_evaluation_found_says_of_which_weights():
    assert "accuracy 0.381 (at 0)" in numbers({**KNOWN, "eval/accuracy": 0.381}, at=0)
    assert "reward 0.500  " in numbers(KNOWN)  # of the samples that were trained on


@pytest.mark.parametrize(("iteration", "known"), [(1, False), (2, False), (3, True), (150, True)])
def test_the_time_that_is_left_is_told_from_the_third_iteration_on(monkeypatch, iteration, known):
    """The first iteration includes an evaluation and took 90 s, each of the others 2."""
    shown = progress(KNOWN)
    shown.first, shown.began, shown.paced = 0, 0.0, 90.0
    now = 90.0 + 2.0 * (iteration - 1)
    monkeypatch.setattr("tandem.training.callbacks.progress.time.monotonic", lambda: now)
    ahead = shown._ahead(at_iteration(iteration))
    assert bool(ahead) is known
    if iteration == 3:
        assert ahead == "4 min 54 s left"  # 147 iterations of 2 s


def test_a_line_of_a_warm_start_says_so():
    """A sweep repeats the last line of each of its runs, without the lines before it."""
    for job, begins in (
        ("train", " 31/150  reward"),
        ("warm_start", "warm start   31/150  reward"),
    ):
        shown = progress(KNOWN, job=job)
        shown.first = 30
        assert shown._line(at_iteration(31)).startswith(begins)
