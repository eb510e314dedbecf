"""The tables of curves and of pass@k, on runs with known numbers."""

import pytest
from written_runs import wordy, write_run

from tandem.compare.__main__ import main
from tandem.compare.curve_summaries import choose_threshold
from tandem.compare.curve_tables import table_curves, table_tries
from tandem.compare.scores import score_variant
from tandem.record.reading.runs import find, read
from tandem.record.reading.variants import group_runs

METRIC = "eval/accuracy"


def variants_of(folder, metric=METRIC):
    return [
        score_variant(one, metric) for one in group_runs([read(path) for path in find([folder])])
    ]


def cells(table, row=0):
    return dict(zip(table.columns, table.rows[row], strict=True))


def test_one_variant_by_hand(tmp_path):
    """Two seeds rise from 0 by 0.2 and by 0.1 at each of four points; the threshold is 0.3."""
    write_run(tmp_path / "0", [0.0, 0.2, 0.4, 0.6], seed=0, every=10)
    write_run(tmp_path / "1", [0.0, 0.1, 0.2, 0.3], seed=1, every=10)
    table = table_curves(variants_of(tmp_path), METRIC, "samples", 0.3)
    found = cells(table)
    assert (found["variant"], found["n"], found["area"]) == ("grpo", "2", "0.225")
    assert found["samples to threshold"] == str((15 + 30) * 64 // 2)
    assert (found["seeds that reach it"], found["fitted end"]) == ("2 of 2", "-")
    assert "No fit: grpo: 4 points, needs 6." in table.notes


def test_the_threshold_is_halfway_to_the_best_variant(tmp_path):
    write_run(tmp_path / "a", [0.1, 0.5, 0.9], algorithm="grpo")
    write_run(tmp_path / "b", [0.1, 0.1, 0.2], algorithm="rloo")
    table = table_curves(variants_of(tmp_path), METRIC, "iterations")
    assert {cells(table, i)["threshold"] for i in (0, 1)} == {"0.500"}
    assert [cells(table, i)["iterations to threshold"] for i in (0, 1)] == ["1", "never"]
    assert [cells(table, i)["seeds that reach it"] for i in (0, 1)] == ["1 of 1", "0 of 1"]


def test_nothing_that_rose_has_no_threshold(tmp_path):
    write_run(tmp_path / "a", [0.5, 0.4])
    assert choose_threshold(variants_of(tmp_path), METRIC, None).value is None
    assert choose_threshold(variants_of(tmp_path), "response/length", None).value is None
    assert choose_threshold(variants_of(tmp_path), METRIC, 0.45).value == 0.45


def test_areas_end_where_the_shortest_variant_does(tmp_path):
    """A run twice as long has not learned more on the way."""
    write_run(tmp_path / "a", [0.0, 0.4, 0.4, 0.4, 0.4], algorithm="grpo")
    write_run(tmp_path / "b", [0.0, 0.4, 0.4], algorithm="rloo")
    table = table_curves(variants_of(tmp_path), METRIC, "iterations")
    assert [cells(table, i)["area"] for i in (0, 1)] == ["0.300", "0.300"]


def test_an_area_is_of_each_seed_on_its_own_places_up_to_where_the_first_one_ends(tmp_path):
    """At 1,280 tokens one seed has 0.4, and the one with ten times as many tokens per step 0.12."""
    write_run(tmp_path / "0", [0.0, 0.2, 0.4], seed=0)
    wordy(write_run(tmp_path / "1", [0.0, 0.6, 0.8], seed=1), 10)
    found = cells(table_curves(variants_of(tmp_path), METRIC, "tokens"))
    assert found["area"] == f"{(0.2 + 0.06) / 2:.3f}"


def test_a_variant_that_died_goes_on_and_does_not_cut_the_others(tmp_path):
    write_run(tmp_path / "a", [0.0, 0.4, 0.4], algorithm="grpo")
    write_run(tmp_path / "b", [0.0, 0.2], algorithm="rloo", iterations=2)
    table = table_curves(variants_of(tmp_path), METRIC, "iterations")
    assert [cells(table, i)["area"] for i in (0, 1)] == ["0.300", "0.150"]


def test_a_run_that_died_keeps_its_height_and_never_gets_there(tmp_path):
    write_run(tmp_path / "0", [0.0, 0.8, 0.8], seed=0)
    write_run(tmp_path / "1", [0.0, 0.4], seed=1, iterations=2)
    found = cells(table_curves(variants_of(tmp_path), METRIC, "iterations", 0.5))
    assert found["area"] == f"{((0.4 + 0.8) / 2 + (0.2 + 0.4) / 2) / 2:.3f}"
    assert (found["iterations to threshold"], found["seeds that reach it"]) == ("never", "1 of 2")


def test_an_axis_that_nobody_counted_has_no_numbers(tmp_path):
    write_run(tmp_path / "0", [0.0, 0.8])
    found = cells(table_curves(variants_of(tmp_path), METRIC, "gpu_seconds"))
    assert {found["area"], found["gpu seconds to threshold"], found["fitted end"]} == {"-"}


def test_pass_at_k_stands_at_both_ends(tmp_path):
    for seed, end in enumerate((0.5, 0.7)):
        ends = {"eval/pass@1": [0.1, None, end], "eval/pass@8": [0.4, None, 0.6]}
        write_run(tmp_path / str(seed), [0.1, 0.2, 0.3], seed=seed, also=ends)
    dead = {"eval/pass@1": [0.3, 0.1], "eval/pass@8": [0.4, None]}
    write_run(tmp_path / "2", [0.1, 0.2], seed=2, iterations=2, also=dead)
    table = table_tries(variants_of(tmp_path))
    one, eight = cells(table, 0), cells(table, 1)
    assert (one["k"], one["n"], eight["k"]) == ("1", "3", "8")
    assert float(one["gain"]) == pytest.approx((0.4 + 0.6 - 0.2) / 3, abs=1e-3)
    assert float(eight["gain"]) == pytest.approx((0.2 + 0.2 + 0) / 3, abs=1e-3)
    assert table.notes == ["Measured only once, so start and end agree: grpo: seed 2."]


def test_runs_without_tries_have_no_such_table(tmp_path):
    write_run(tmp_path / "0", [0.0, 0.8])
    assert table_tries(variants_of(tmp_path)) is None


def test_a_threshold_beyond_all_scores_is_refused(tmp_path):
    write_run(tmp_path / "run", [0.0, 0.8])
    with pytest.raises(
        ValueError, match="threshold=50 is out of range: eval/accuracy lies between 0 and 1"
    ):
        table_curves(variants_of(tmp_path), METRIC, "iterations", 50)
    assert choose_threshold(variants_of(tmp_path), "eval/reward", 50).value == 50


def test_a_threshold_that_is_no_number_is_one_line(tmp_path, capsys):
    write_run(tmp_path / "run", [0.0, 0.8])
    for text in ("half", "nan"):
        with pytest.raises(SystemExit) as exit:
            main([str(tmp_path), f"threshold={text}"])
        said = capsys.readouterr().err.strip()
        assert exit.value.code == 2
        assert said == f"threshold={text} is not a finite number; write threshold=0.5, say"
