"""Whether an untrained judge rose as well: for each variant, with intervals."""

from dataclasses import replace

import numpy as np
import pytest
from written_runs import write_run

from tandem.compare.comparison import Request, compare
from tandem.compare.headline import write_warnings
from tandem.compare.judges import JudgedVariant, describe_hacked, find_judges, table_judged
from tandem.compare.report.payload import make_payload
from tandem.compare.statistics.intervals import estimate, paired_difference
from tandem.compare.terminal import show_comparison
from tandem.record.reading.runs import find, read
from tandem.record.run_record import RunRecord
from tandem.types import Prompt

REWARDS = {"share": {"weight": 1.0}, "judge": {"weight": 0.0}}
PROMPTS = [Prompt(id=i, source="letters", text="?") for i in range(20)]


def write(folder, algorithm, seed, trained, judge, judges=("judge",)):
    run = folder / f"{algorithm}-{seed}"
    also = {"eval/reward": trained, "eval/reward_judge": judge}
    named = {"reward": REWARDS, "guards": {"judges": [*judges]}}
    return write_run(run, trained, seed=seed, algorithm=algorithm, also=also, **named)


def compare_runs(folder):
    return compare([read(path) for path in find([folder])], Request())


def test_every_variant_is_told_by_its_intervals_over_seeds(tmp_path):
    ends = {"grpo": (-0.2, -0.25, -0.3), "rloo": (0.2, 0.25, 0.3), "dapo": (0.2, -0.3, 0.1)}
    for algorithm, moves in ends.items():
        for seed, move in enumerate(moves):
            rise = [0.2, 0.5, 0.7 + seed / 50]
            write(tmp_path, algorithm, seed, rise, [0.5, 0.5 + max(move, -move), 0.5 + move])
    found = compare_runs(tmp_path)
    told = {one.variant: one for one in found.judges}
    assert {name: one.verdict for name, one in told.items()} == {
        "grpo": "no: the reward rose and the judge fell",
        "rloo": "yes, both rose",
        "dapo": "not known: the reward rose, and the judge is not known to have changed",
    }
    assert {one.over for one in told.values()} == {"seeds"}
    own = estimate([-0.2, -0.25, -0.3])
    assert told["grpo"].judged.interval() == pytest.approx((own.low, own.high))
    assert list(told["grpo"].highest) == [1, 1, 1]
    (warning,) = [line for line in write_warnings(found) if "judge" in line]
    assert warning.startswith("grpo: the trained reward rose by 0.520 [")
    assert "judge judge fell by 0.250 [" in warning and "reward is hacked" in warning
    shown = " ".join(show_comparison(found).split())
    assert "Did the judge rise as well?" in shown and "no: the reward rose" in shown
    page = make_payload(found)
    assert warning in page["warnings"] and "eval/reward_judge" in page["metrics"]
    assert page["tables"][0]["name"] == "judges"


def test_of_many_judges_one_that_fell_by_its_own_interval_proves_nothing():
    """p = 0.0138 at one judge; of ten such rows one in seven reports has one by chance."""
    rose = paired_difference([0.9, 0.8, 0.85], [0.2, 0.1, 0.14])
    fell = paired_difference([0.4, 0.44, 0.41], [0.5, 0.5, 0.5])
    row = {"variant": "grpo", "runs": 3, "over": "seeds", "highest": [0], "going": False}
    one = JudgedVariant(judge="judge", trained=rose, judged=fell, **row)
    assert 0.005 < fell.p < 0.05 and one.is_hacked
    many = replace(one, among=10)
    assert not many.is_hacked and describe_hacked([many]) == []
    said = "not known: the reward rose and the judge fell, but not at the level of 10 rows"
    assert many.verdict == said
    assert "(Bonferroni over the 2 rows)" in table_judged([one, one]).notes[0]


def test_nothing_is_concluded_about_a_judge_while_a_run_is_in_progress(tmp_path):
    for seed in range(3):
        write(tmp_path, "grpo", seed, [0.2, 0.4, 0.5 + seed / 50], [0.5, 0.4, 0.3 + seed / 50])
    hacked = "no: the reward rose and the judge fell"
    assert [one.verdict for one in compare_runs(tmp_path).judges] == [hacked]
    also = {"eval/reward": [0.2, 0.4], "eval/reward_judge": [0.5, 0.4]}
    named = {"reward": REWARDS, "guards": {"judges": ["judge"]}, "also": also}
    write_run(tmp_path / "grpo-3", [0.2, 0.4], seed=3, iterations=2, going=True, **named)
    found = compare_runs(tmp_path)
    assert [one.verdict for one in found.judges] == ["not known yet: in progress"]
    assert not any("hacked" in line for line in write_warnings(found))


def test_one_run_is_told_by_its_prompts_and_says_so(tmp_path):
    run = write(tmp_path, "grpo", 0, [0.2, 0.8], [0.5, 0.3])
    random = np.random.default_rng(0)
    noise = random.normal(0, 0.1, (2, 20))
    values = {0: (0.2, 0.5 + noise[0]), 1: (0.8, 0.3 + noise[1])}
    for iteration, (trained, judge) in values.items():
        numbers = {"eval/reward": (trained + noise[iteration]).tolist()}
        numbers |= {"eval/reward_judge": judge.tolist()}
        RunRecord(run).prompts(iteration, PROMPTS, numbers)
    (one,) = compare_runs(tmp_path).judges
    gap = values[1][1] - values[0][1]
    half = 2.093 * gap.std(ddof=1) / 20**0.5  # Student's, 19 degrees of freedom
    assert (one.over, one.verdict) == ("prompts", "no: the reward rose and the judge fell")
    assert one.judged.mean == pytest.approx(gap.mean())
    assert one.judged.interval()[1] == pytest.approx(gap.mean() + half, abs=1e-4)


def write_ends(run, moves, prompts=PROMPTS):
    """The prompts of the two evaluations: the reward rises by 0.5, and the judge moves."""
    noise = np.random.default_rng(0).normal(0, 0.1, (2, len(prompts)))
    for iteration, (rise, move) in enumerate(((0, 0), (0.5 + noise[0], np.asarray(moves)))):
        numbers = {"eval/reward": 0.2 + rise + noise[1], "eval/reward_judge": 0.5 + move + noise[1]}
        RunRecord(run).prompts(iteration, prompts, {k: list(x) for k, x in numbers.items()})


def test_two_runs_of_the_same_prompts_are_told_by_the_mean_change_of_each_prompt(tmp_path):
    """The prompts are as many as for one run, not twice as many."""
    moves = np.random.default_rng(1).normal(-0.04, 0.1, (2, 20))
    moves[1] = moves[0] + 0.1 * (moves[1] - moves[1].mean())  # hard prompts are hard for both
    for seed in (0, 1):
        write_ends(write(tmp_path, "grpo", seed, [0.2, 0.7], [0.5, 0.4]), moves[seed])
    (one,) = compare_runs(tmp_path).judges
    own = estimate(moves.mean(0))
    assert (one.over, one.runs, one.judged.pairs) == ("prompts", 2, 20)
    assert one.judged.interval() == pytest.approx((own.low, own.high))


def test_two_runs_of_other_prompts_are_independent(tmp_path):
    moves = np.random.default_rng(1).normal(-0.04, 0.1, (2, 20))
    for seed in (0, 1):
        own = [Prompt(id=20 * seed + i, source="letters", text="?") for i in range(20)]
        write_ends(write(tmp_path, "grpo", seed, [0.2, 0.7], [0.5, 0.4]), moves[seed], own)
    (one,) = compare_runs(tmp_path).judges
    errors = moves.std(1, ddof=1) / 20**0.5
    half = 2.093 * (errors**2).sum() ** 0.5 / 2  # Student's, 19 degrees of freedom
    assert one.judged.interval()[1] == pytest.approx(moves.mean() + half, abs=1e-4)


def test_a_run_that_kept_no_prompts_claims_nothing(tmp_path):
    write(tmp_path, "grpo", 0, [0.2, 0.8], [0.5, 0.3])
    found = compare_runs(tmp_path)
    assert not found.judges and all(table.name != "judges" for table in found.tables)


def test_a_reward_that_nobody_calls_a_judge_is_none(tmp_path):
    """A weight of 0 alone does not mean that higher is better."""
    run = read(write(tmp_path, "grpo", 0, [0.2, 0.8], [0.5, 0.3], judges=()))
    assert find_judges(run) == []
