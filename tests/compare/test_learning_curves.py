"""Curves of all seeds at the same iterations, including runs that died."""

import numpy as np
import pytest
from written_runs import wordy, write_run

from tandem.compare.learning_curves import align_curves, draw_mean, thin
from tandem.compare.scores import bounds_of, score_variant
from tandem.compare.statistics.intervals import ANY
from tandem.record.reading.runs import read
from tandem.record.reading.variants import group_runs


def of(tmp_path, *curves, **common):
    folders = [write_run(tmp_path / str(i), y, seed=i, **common) for i, y in enumerate(curves)]
    return [read(folder) for folder in folders]


def test_a_run_that_died_goes_on_with_the_score_it_had(tmp_path):
    found = align_curves(
        of(tmp_path, [0.0, 0.4, 0.8], [0.2, 0.3], every=5, iterations=10), "eval/accuracy"
    )
    assert found.x.tolist() == [[0, 5, 10]] * 2
    assert found.y.tolist() == [[0.0, 0.4, 0.8], [0.2, 0.3, 0.3]]
    assert found.lived.tolist() == [[True] * 3, [True, True, False]]


def test_on_another_axis_each_seed_is_where_it_was_and_the_mean_is_between_them(tmp_path):
    """Answers of different lengths: seeds end at 1,280 and at 12,800 tokens."""
    write_run(tmp_path / "0", [0.0, 0.2, 0.4], seed=0)
    wordy(write_run(tmp_path / "1", [0.0, 0.6, 0.8], seed=1), 10)
    runs = [read(tmp_path / name) for name in "01"]
    found = align_curves(runs, "eval/accuracy", "tokens")
    assert found.x.tolist() == [[0, 640, 1280], [0, 6400, 12800]]
    x, mean, _, _ = zip(*draw_mean(found, ANY), strict=True)
    assert x == (0, 3520, 7040) and mean == pytest.approx((0, 0.4, 0.6))
    assert align_curves(runs, "eval/accuracy", "gpu_seconds") is None


def test_a_run_that_goes_on_moves_no_seed(tmp_path):
    """The points of other seeds stay in place when one run writes more."""
    short = write_run(tmp_path / "0", [0.0, 0.2], seed=0, iterations=3)
    wordy(write_run(tmp_path / "1", [0.0, 0.6, 0.8, 0.9], seed=1), 10)
    read_all = lambda: [read(tmp_path / name) for name in "01"]  # noqa: E731
    before = align_curves(read_all(), "eval/accuracy", "tokens")
    with (short / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 2, "eval/accuracy": 0.3, "tokens": 1300}\n')
    after = align_curves(read_all(), "eval/accuracy", "tokens")
    assert after.x[before.lived].tolist() == before.x[before.lived].tolist()
    assert after.middle[:2].tolist() == before.middle[:2].tolist() == [0, 3520]


def test_a_seed_that_died_between_two_points_goes_on_at_the_others_pace(tmp_path):
    died = write_run(tmp_path / "died", [0.0, 0.1, 0.2, 0.3], seed=0, iterations=8)
    went = write_run(tmp_path / "went", [0.0, 0.1, 0.2, 0.3, 0.4], seed=1, every=2)
    found = align_curves([read(died), read(went)], "eval/accuracy")
    assert found.x.tolist() == [[0, 2, 4, 6, 8]] * 2
    assert found.y[0].tolist() == [0.0, 0.2, 0.3, 0.3, 0.3]


def test_an_axis_does_not_run_backwards_where_a_slow_run_died(tmp_path):
    slow = write_run(tmp_path / "slow", [0.0, 0.1], seed=0, iterations=3)
    text = (slow / "timing.jsonl").read_text().replace('"time/total": 2.0', '"time/total": 999.0')
    (slow / "timing.jsonl").write_text(text)
    fast = write_run(tmp_path / "fast", [0.0, 0.1, 0.2, 0.3], seed=1)
    found = align_curves([read(slow), read(fast)], "eval/accuracy", "seconds")
    assert found.x.tolist() == [[0, 999, 1001, 1003], [0, 2, 4, 6]]
    assert found.middle.tolist() == [0, 500.5, 502.5, 504.5]


def test_a_run_of_an_earlier_version_that_went_on_has_seconds_in_all_its_lines(tmp_path):
    folder = write_run(tmp_path / "run", [0.0, 0.1, 0.2])
    timing = (folder / "timing.jsonl").read_text()
    last = '"time/reached": 3.5, "time/total": 4.0'
    (folder / "timing.jsonl").write_text(timing.replace('"time/total": 4.0', last))
    assert read(folder).curve("eval/accuracy", "seconds").x.tolist() == [0, 2, 3.5]


def test_runs_evaluated_at_other_iterations_meet_where_both_were(tmp_path):
    often = read(write_run(tmp_path / "often", [0.0, 0.1, 0.2, 0.3, 0.4], every=5))
    seldom = read(write_run(tmp_path / "seldom", [0.0, 0.5, 0.6], every=10))
    assert align_curves([often, seldom], "eval/accuracy").middle.tolist() == [0, 10, 20]


def test_the_mean_line_is_the_mean_and_its_interval_at_every_point(tmp_path):
    curves = of(tmp_path, [0.0, 0.4], [0.2, 0.8], [0.1, 0.6])
    found = draw_mean(align_curves(curves, "eval/accuracy"), ANY)
    assert [point[1] for point in found] == pytest.approx([0.1, 0.6])
    half = 4.302653 * np.std([0.4, 0.6, 0.8], ddof=1) / np.sqrt(3)
    assert found[1][3] - 0.6 == pytest.approx(half, rel=1e-4)


def test_the_interval_of_a_share_stays_between_0_and_1(tmp_path):
    runs = of(tmp_path, [0.0, 1.0], [0.0, 1.0], [0.1, 0.8])
    found = score_variant(*group_runs(runs), "eval/accuracy").estimate
    assert found.high == 1 and 0 < found.low < found.mean < 1
    curves = align_curves(runs, "eval/accuracy")
    (*_, low, _), (*_, high) = draw_mean(curves, bounds_of("eval/accuracy"))
    assert (low, high) == (0, 1)
    (*_, low, _), (*_, high) = draw_mean(curves, bounds_of("eval/reward"))  # it may be any number
    assert low < 0 and high > 1


def test_long_curves_are_thinned_to_their_ends():
    kept = thin(range(1001))
    assert len(kept) == 200 and kept[0] == 0 and kept[-1] == 1000
    assert thin(range(7)) == list(range(7))
