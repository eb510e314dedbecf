"""Tasks: which runs were evaluated on the same data, and statements over many tasks."""

import json
import re

import numpy as np
import pytest
from written_runs import write_run, write_task

from tandem.compare.__main__ import main
from tandem.compare.multitask import aggregate_tasks
from tandem.compare.pairs import compare_all
from tandem.compare.scores import Scored, score_variant
from tandem.compare.statistics import aggregates
from tandem.compare.statistics.intervals import estimate
from tandem.record.reading.runs import find, read
from tandem.record.reading.variants import Variant, group_runs

METRIC = "eval/accuracy"


def many(tasks, seeds, algorithms=("grpo", "rloo")):
    """Variants and their scores on each task, without runs."""
    random = np.random.default_rng(0)
    return [
        variant(algorithm, f"task{i}", (0.1 * (i % 5) + random.uniform(0, 0.5, seeds)).tolist())
        for i in range(tasks)
        for algorithm in algorithms
    ]


def variant(name, task, scores):
    own = Variant(name=f"{name}, {task}", runs=[], task=task, everywhere=name)
    return Scored(variant=own, scores=scores, without=[], estimate=estimate(scores))


def runs_of(folder):
    return [read(path) for path in find([folder])]


def test_runs_of_two_data_are_two_tasks_and_what_comes_with_them_sets_no_variants_apart(tmp_path):
    for i in (0, 1):
        write_task(tmp_path, f"task{i}", {"grpo": [0.1], "rloo": [0.2]}, reward=f"reward{i}")
    variants = group_runs(runs_of(tmp_path))
    assert {(one.everywhere, one.task) for one in variants} == {
        (algorithm, f"data.task=task{i}") for algorithm in ("grpo", "rloo") for i in (0, 1)
    }
    assert variants[0].name == "grpo, data.task=task0"


def test_a_reward_that_differs_within_a_task_is_another_variant(tmp_path):
    for reward in ("format", "length"):
        for task in "ab":
            write_task(tmp_path / reward, task, {"grpo": [0.5]}, reward=reward)
    names = {one.everywhere for one in group_runs(runs_of(tmp_path))}
    assert names == {"reward=format", "reward=length"}


def test_other_data_to_train_on_is_no_other_task(tmp_path):
    """The evaluation file is the same, so the variants are the data."""
    for path in ("clean", "noisy"):
        write_task(tmp_path / path, "t", {"grpo": [0.5]}, path=path, eval_path="same")
    variants = group_runs(runs_of(tmp_path))
    assert [(one.name, one.task) for one in variants] == [
        ("data.path=clean", ""),
        ("data.path=noisy", ""),
    ]


def test_by_may_make_data_the_variants(tmp_path):
    for task in "ab":
        write_task(tmp_path, task, {"grpo": [0.5]})
    variants = group_runs(runs_of(tmp_path), ["data.task"])
    assert [one.task for one in variants] == ["", ""]
    with pytest.raises(
        ValueError, match=r"by=data\.task task=data\.task: a key distinguishes either"
    ):
        group_runs(runs_of(tmp_path), ["data.task"], ["data.task"])


def test_task_names_the_keys(tmp_path):
    for lr in (1e-4, 2e-4):
        write_run(tmp_path / str(lr), [0.0, 0.5], optimizer={"lr": lr})
    tasks = [one.task for one in group_runs(runs_of(tmp_path), [], ["optimizer.lr"])]
    assert tasks == ["optimizer.lr=0.0001", "optimizer.lr=0.0002"]
    with pytest.raises(ValueError, match="task=lr: no run has such a choice or key"):
        group_runs(runs_of(tmp_path), [], ["lr"])


def test_differences_are_within_a_task(tmp_path):
    for i in range(3):
        write_task(tmp_path, f"task{i}", {"grpo": [0.5], "rloo": [0.4]})
    found = compare_all(
        [score_variant(one, METRIC) for one in group_runs(runs_of(tmp_path))], METRIC
    )
    tasks = [(pair.better.variant.task, pair.other.variant.task) for pair in found]
    assert len(tasks) == 3 and all(one == other for one, other in tasks)
    assert {pair.among for pair in found} == {3}


def test_four_tasks_and_twenty_scores_are_aggregated():
    variants = many(4, 5)
    found = aggregate_tasks(variants, METRIC)
    assert {one.name for one in found.variants} == {"grpo", "rloo"} and not found.left_out
    own = {one.variant.task: one.scores for one in variants if one.variant.everywhere == "grpo"}
    (grpo,) = [one for one in found.variants if one.name == "grpo"]
    assert grpo.mean == aggregates.interquartile_mean(own)
    scores = sorted(score for of_task in own.values() for score in of_task)
    assert grpo.mean.value == pytest.approx(sum(scores[5:15]) / 10)
    above = sum(score > 0.5 for score in scores) / 20
    assert grpo.profile.share[50] == pytest.approx(above)


@pytest.mark.parametrize(
    ("tasks", "seeds", "why"),
    [
        (3, 9, "3 tasks and 27 scores; needs 4 and 20"),
        (4, 4, "4 tasks and 16 scores; needs 4 and 20"),
        (20, 1, "task0 has one seed, hence no spread"),
        (10, 2, "task0 has 2 seeds, needs 3"),
    ],
)
def test_fewer_are_not(tasks, seeds, why):
    found = aggregate_tasks(many(tasks, seeds, ["grpo"]), METRIC)
    assert (found.variants, found.left_out) == ([], [f"grpo: {why}"])


def test_one_task_is_not_many():
    assert aggregate_tasks(many(1, 30), METRIC) is None


def test_a_variant_that_lacks_a_task_is_beside_no_other():
    found = aggregate_tasks([*many(5, 5), variant("grpo", "task5", [0.5] * 5)], METRIC)
    assert [one.name for one in found.variants] == ["grpo"]
    assert found.left_out == ["rloo: ran on 5 of the 6 tasks"]


def test_a_reward_has_no_scale_that_tasks_share():
    found = aggregate_tasks(many(4, 5), "eval/reward")
    assert not found.variants and "eval/reward is not a share of 1" in found.left_out[0]


def test_the_table_and_the_profiles_are_written(tmp_path, capsys):
    for i in range(4):
        write_task(tmp_path / "runs", f"task{i}", {"grpo": [0.1 * i + 0.05 * s for s in range(5)]})
    main([str(tmp_path / "runs"), f"out={tmp_path / 'out'}"])
    assert "grpo 4 20 0.250" in " ".join(capsys.readouterr().out.split())
    page = (tmp_path / "out" / "report.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    (profile,) = data["profiles"]
    assert (profile["n"], profile["x"][25], profile["share"][25]) == (20, 0.25, 0.45)
    assert "grpo has the highest interquartile mean: 0.250 [" in data["headline"]
    for name in ("tasks.md", "tasks.csv", "tasks.tex", "profiles.pdf"):
        assert (tmp_path / "out" / name).stat().st_size > 100
