"""The table of the larger noise, from run directories."""

import numpy as np
import pytest
from written_runs import write_prompts, write_run

from tandem.compare.noise_table import table_noises
from tandem.compare.pairs import compare_all
from tandem.compare.scores import score_variant
from tandem.compare.statistics.variance_components import estimate_own, estimate_shared
from tandem.record.reading.evaluations import last_evaluation
from tandem.record.reading.runs import find, read
from tandem.record.reading.variants import group_runs

METRIC = "eval/accuracy"


def write(folder, algorithm, answers, *, ids=None, sources=None, **common):
    """A run for each row of answers: [n, P]."""
    for seed, values in enumerate(answers):
        place = folder / f"{algorithm}-{seed}"
        write_run(place, [0.0, float(np.mean(values))], seed=seed, algorithm=algorithm, **common)
        own_ids = None if ids is None else ids[seed]
        write_prompts(place, values, ids=own_ids, sources=sources)


def table_of(folder):
    variants = [score_variant(one, METRIC) for one in group_runs([read(p) for p in find([folder])])]
    return table_noises(variants, compare_all(variants, METRIC), METRIC)


def cells(table, name):
    (row,) = [row for row in table.rows if row[0] == name]
    return dict(zip(table.columns, row, strict=True))


def answers(n, prompts, *, seed, prompt, at=0.5, stream=0):
    random = np.random.default_rng(stream)
    of_prompt = random.normal(0, prompt, prompts)
    of_seed = random.normal(0, seed, (n, 1))
    return at + of_seed + of_prompt + random.normal(0, 0.02, (n, prompts))


def test_numbers_of_one_variant_and_what_to_buy(tmp_path):
    y = answers(4, 10, seed=0.01, prompt=0.3)
    write(tmp_path, "grpo", y)
    table, found = table_of(tmp_path), estimate_shared(y, ["letters"] * 10)
    one = cells(table, "grpo")
    assert (one["n"], one["prompts"], one["larger error"]) == ("4", "10", "prompts")
    assert one["added by other prompts"] == f"{found.added**0.5:.3f}"
    assert one["prompts needed"] == str(found.enough)
    said = "Prompts are the larger noise in the only variant: add prompts"
    assert table.notes[-1].startswith(said)


def test_a_difference_is_decomposed_itself(tmp_path):
    """Prompts are the larger noise in each variant, but equally hard for both: in the gap seeds
    are."""
    a = answers(4, 10, seed=0.05, prompt=0.3)
    b = a - 0.1 + np.array([[0.08], [-0.03], [-0.06], [0.01]])
    write(tmp_path, "grpo", a)
    write(tmp_path, "rloo", b)
    table = table_of(tmp_path)
    assert cells(table, "grpo")["larger error"] == cells(table, "rloo")["larger error"] == "prompts"
    gap = cells(table, "grpo - rloo")
    assert (gap["n"], gap["larger error"], gap["mean"]) == ("4, 4", "seeds", "0.100")
    assert float(gap["added by other prompts"]) == pytest.approx(0, abs=1e-6)
    said = "Seeds are the larger noise in the only difference: add seeds, not prompts."
    assert table.notes[-1] == said


def test_without_pairs_prompts_are_still_shared(tmp_path):
    a = answers(4, 10, seed=0.05, prompt=0.3)
    write(tmp_path, "grpo", a)
    write(tmp_path, "rloo", a[:3] - 0.1, warm_start=None)
    gap = cells(table_of(tmp_path), "grpo - rloo")
    assert gap["n"] == "4, 3" and float(gap["added by other prompts"]) < 0.01


def test_a_lost_run_takes_its_own_pair_and_no_other(tmp_path):
    """Each seed draws its own prompts, and both variants find the same ones hard: apart they seem
    to need more prompts; in pairs the difference is by seed."""
    a = np.stack([answers(1, 20, seed=0, prompt=0.3, stream=s)[0] for s in range(6)])
    b = a - 0.1 + np.array([0.05, -0.04, 0.06, -0.05, 0.03, -0.05])[:, None]
    ids = [range(20 * s, 20 * s + 20) for s in range(6)]
    write(tmp_path, "grpo", a, ids=ids)
    write(tmp_path, "rloo", b[:5], ids=ids)
    table = table_of(tmp_path)
    gap = cells(table, "grpo - rloo")
    assert (gap["n"], gap["larger error"]) == ("5, 5", "seeds")
    assert gap["mean"] == f"{(a - b)[:5].mean():.3f}"
    assert table.notes[-1].startswith("Seeds are the larger noise in the only difference")


def test_prompts_that_are_shared_without_pairs_are_not_counted_twice(tmp_path):
    """The variants start from different weights, and each seed has its own prompts."""
    ids = [range(10 * s, 10 * s + 10) for s in range(3)]
    y = answers(3, 10, seed=0.05, prompt=0.3)
    write(tmp_path, "grpo", y, ids=ids)
    write(tmp_path, "rloo", y[:2] - 0.1, ids=ids, warm_start=None)
    table = table_of(tmp_path)
    assert set(cells(table, "grpo - rloo").values()) == {"grpo - rloo", "3, 2", "-"}
    why = "Not separated: grpo - rloo: its sides share prompts but have no paired runs."
    assert why in table.notes


def test_seeds_that_were_asked_other_prompts_count_them_already(tmp_path):
    y = answers(3, 10, seed=0.05, prompt=0.3)
    write(tmp_path, "grpo", y, ids=[range(10 * s, 10 * s + 10) for s in range(3)])
    one, found = cells(table_of(tmp_path), "grpo"), estimate_own(list(y), [["letters"] * 10] * 3)
    assert one["added by other prompts"] == "included"
    assert one["error from prompts"] == f"{found.prompts**0.5:.3f}"


def test_all_prompts_that_there_are_leave_nothing_to_chance(tmp_path):
    """Each source has one prompt, which any other set would contain too: no table."""
    every, one = ["a", "b", "c", "d"], ["a", "a", "b", "b"]
    write(tmp_path / "all", "grpo", answers(3, 4, seed=0.1, prompt=0.1), sources=every)
    assert table_of(tmp_path / "all") is None
    write(tmp_path / "some", "grpo", answers(3, 4, seed=0.1, prompt=0.1), sources=one)
    assert table_of(tmp_path / "some") is not None


def test_a_prompt_without_a_number_in_one_seed_is_left_out_of_all(tmp_path):
    y = answers(3, 6, seed=0.1, prompt=0.1)
    y[1, 2] = np.nan
    for seed, values in enumerate(y):
        place = write_run(tmp_path / str(seed), [0.0, float(np.nanmean(values))], seed=seed)
        write_prompts(place, values)
    assert cells(table_of(tmp_path), "grpo")["prompts"] == "5"


def test_runs_that_kept_no_prompts_have_no_such_table(tmp_path):
    write_run(tmp_path / "0", [0.0, 0.5])
    assert table_of(tmp_path) is None


def test_the_evaluation_of_the_score_is_read_and_no_other(tmp_path):
    """Even if a later one is torn, or belongs to an iteration that was never logged."""
    place = write_run(tmp_path / "run", [0.0, 0.5])
    for iteration, values in enumerate(([0.0, 0.0], [0.25, 0.75], [1.0, 1.0])):
        write_prompts(place, values, iteration=iteration, ids=[7, 8])
    with (place / "evaluations.jsonl").open("a") as file:
        file.write('{"iteration": 1, "eval/accuracy": [')
    found = last_evaluation(read(place), METRIC)
    assert (found.values.tolist(), found.prompts) == ([0.25, 0.75], [7, 8])
    assert last_evaluation(read(place), "eval/reward") is None
