"""Curves of all seeds at the same iterations, and those that died."""

import numpy as np
import pytest
from written_runs import write_run

from tandem.compare.learning import learning, mean_line, thinned
from tandem.compare.runs import read


def of(tmp_path, *curves, **common):
    folders = [write_run(tmp_path / str(i), y, seed=i, **common) for i, y in enumerate(curves)]
    return [read(folder) for folder in folders]


def test_a_run_that_died_goes_on_with_the_score_it_had(tmp_path):
    found = learning(
        of(tmp_path, [0.0, 0.4, 0.8], [0.2, 0.3], every=5, iterations=10), "eval/accuracy"
    )
    assert found.x.tolist() == [0, 5, 10]
    assert found.y.tolist() == [[0.0, 0.4, 0.8], [0.2, 0.3, 0.3]]
    assert found.lived.tolist() == [[True] * 3, [True, True, False]]


def test_another_axis_is_the_mean_of_those_that_came_so_far(tmp_path):
    runs = of(tmp_path, [0.0, 0.4], [0.2, 0.3], every=5)
    assert learning(runs, "eval/accuracy", "samples").x.tolist() == [0, 320]
    assert learning(runs, "eval/accuracy", "gpu_seconds") is None


def test_an_axis_does_not_run_backwards_where_a_slow_run_died(tmp_path):
    slow = write_run(tmp_path / "slow", [0.0, 0.1], seed=0, iterations=3)
    text = (slow / "timing.jsonl").read_text().replace('"time/total": 2.0', '"time/total": 999.0')
    (slow / "timing.jsonl").write_text(text)
    fast = write_run(tmp_path / "fast", [0.0, 0.1, 0.2, 0.3], seed=1)
    found = learning([read(slow), read(fast)], "eval/accuracy", "seconds")
    assert found.x.tolist() == [0, 2, 4, 6]


def test_runs_evaluated_at_other_iterations_meet_where_both_were(tmp_path):
    often = read(write_run(tmp_path / "often", [0.0, 0.1, 0.2, 0.3, 0.4], every=5))
    seldom = read(write_run(tmp_path / "seldom", [0.0, 0.5, 0.6], every=10))
    assert learning([often, seldom], "eval/accuracy").x.tolist() == [0, 10, 20]


def test_the_mean_line_is_the_mean_and_its_interval_at_every_point(tmp_path):
    found = mean_line(learning(of(tmp_path, [0.0, 0.4], [0.2, 0.8]), "eval/accuracy"))
    assert [point[1] for point in found] == pytest.approx([0.1, 0.6])
    half = 12.7062 * np.std([0.4, 0.8], ddof=1) / np.sqrt(2)
    assert found[1][3] - 0.6 == pytest.approx(half, rel=1e-4)


def test_long_curves_are_thinned_to_their_ends():
    kept = thinned(range(1001))
    assert len(kept) == 200 and kept[0] == 0 and kept[-1] == 1000
    assert thinned(range(7)) == list(range(7))
