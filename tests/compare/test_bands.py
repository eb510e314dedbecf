"""The expected curve of an experiment, and which new runs stay within its band."""

import json
import math

import numpy as np
import pytest
from scipy import stats
from written_runs import write_run

from tandem.compare import bands, expected_bands
from tandem.compare.__main__ import main
from tandem.compare.bands import describe_judged, table_judged
from tandem.record.reading.runs import find, read
from tandem.record.reading.variants import group_runs
from tandem.record.run_record import RunRecord

METRIC = "eval/accuracy"
SPREAD = 0.03


def curve(seed, *, shift=0.0, points=6):
    """From 0, shared by all seeds, upwards; a seed is better or worse throughout."""
    random = np.random.default_rng(seed)
    height = 0.6 + shift + SPREAD * random.normal()
    rise = np.linspace(0, 1, points) * (height + 0.01 * random.normal(size=points))
    return rise.tolist()


def experiment(folder, seeds=10, algorithms=("grpo", "rloo")):
    for algorithm in algorithms:
        for seed in range(seeds):
            place = folder / "runs" / f"{algorithm}-{seed}"
            write_run(place, curve(seed), seed=seed, algorithm=algorithm, every=10)
    variants = group_runs([read(path) for path in find([folder / "runs"])])
    expected_bands.save(folder / "kept", variants, METRIC)
    return expected_bands.load(folder / "kept")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return experiment(tmp_path_factory.mktemp("experiment"))


def judge(tmp_path, kept, own, **changes):
    folder = write_run(tmp_path / "new", own, seed=99, every=10, **changes)
    return bands.judge(read(folder), kept)


def test_what_is_kept_is_the_band_of_its_definition(kept):
    """At the five points where seeds differ; at the first all are 0."""
    y = np.array([curve(seed) for seed in range(10)])
    edge = stats.t.ppf(1 - 0.025 / 5, 9) * math.sqrt(1 + 1 / 10)
    band = kept.variants[0].band
    assert band.x.tolist() == [0, 10, 20, 30, 40, 50]
    np.testing.assert_allclose(band.mean, y.mean(0), rtol=1e-5)
    np.testing.assert_allclose(band.high[1:], (y.mean(0) + edge * y.std(0, ddof=1))[1:], rtol=1e-5)
    assert np.isnan(band.low[0]) and np.isnan(band.high[0])


def test_a_run_like_the_others_stays_inside(tmp_path, kept):
    found = judge(tmp_path, kept, curve(99))
    assert found.holds and describe_judged(found) == "inside at all 5 points"


def test_a_run_that_leaves_says_where(tmp_path, kept):
    own = curve(99)
    own[3] = 0.9
    found = judge(tmp_path, kept, own)
    assert not found.holds
    assert describe_judged(found).startswith(
        "outside from iteration 30: 0.9, where the band is [0."
    )
    assert describe_judged(found).endswith("outside at 1 of 6 points")


def test_where_all_seeds_agree_another_value_is_no_fault(tmp_path, kept):
    assert judge(tmp_path, kept, [0.01, *curve(99)[1:]]).holds


def test_a_run_that_ended_before_is_not_inside(tmp_path, kept):
    found = judge(tmp_path, kept, curve(99)[:3], iterations=50)
    assert not found.holds
    assert describe_judged(found) == "inside at the 3 of 6 points reached"


def test_runs_that_ended_early_by_themselves_are_inside_the_band_made_of_them(tmp_path):
    for seed in range(10):
        own = curve(seed)[: 4 + seed % 3]
        folder = tmp_path / "runs" / str(seed)
        mark_as_solved(write_run(folder, own, seed=seed, every=10, iterations=50))
    runs = [read(path) for path in find([tmp_path / "runs"])]
    expected_bands.save(tmp_path, group_runs(runs), METRIC)
    kept = expected_bands.load(tmp_path)
    judged = [bands.judge(run, kept) for run in runs]
    assert {describe_judged(one) for one in judged} == {"inside at all 5 points"}
    assert all(one.holds for one in judged)


def mark_as_solved(folder):
    """As training marks the last line."""
    log = folder / "metrics.jsonl"
    log.write_text(log.read_text().rstrip().removesuffix("}") + ', "guards/solved": 5}\n')


@pytest.mark.parametrize("end", [30, 33, 38, 50])
def test_a_run_is_judged_where_the_last_seed_ended_between_two_evaluations(tmp_path, end):
    for seed in range(10):
        solve(tmp_path / "runs" / str(seed), seed=seed, end=30 if seed else 33)
    runs = [read(path) for path in find([tmp_path / "runs"])]
    expected_bands.save(tmp_path, group_runs(runs), METRIC)
    kept = expected_bands.load(tmp_path)
    assert kept.variants[0].band.x.tolist() == [0, 10, 20, 30, 33]
    found = bands.judge(read(solve(tmp_path / "new", seed=99, end=end)), kept)
    assert found.holds and describe_judged(found) == "inside at all 4 points"


def solve(folder, *, seed, end):
    """A run that is evaluated at every tenth iteration, and where it ended."""
    own = curve(seed)
    write_run(folder, own[: end // 10 + 1], seed=seed, every=10, iterations=50)
    if end % 10:
        last = np.interp(end / 10, range(6), own)
        RunRecord(folder).write(end, {METRIC: last}, {})
    mark_as_solved(folder)
    return folder


def test_a_run_belongs_to_the_variant_of_its_configuration(tmp_path, kept):
    assert judge(tmp_path, kept, curve(1), algorithm="rloo").expected.name == "rloo"
    other = judge(tmp_path / "other", kept, curve(1), algorithm="rloo", optimizer={"lr": 3e-4})
    assert other.expected.name == "rloo" and not other.holds
    said = "different configuration: optimizer.lr is 0.0003, expected 0.0001"
    assert describe_judged(other) == said


def test_a_key_that_the_code_has_learnt_since_is_named_and_no_obstacle(tmp_path, kept):
    found = judge(tmp_path, kept, curve(99), optimizer={"lr": 1e-4, "nesterov": False})
    assert found.holds
    notes = table_judged([found], kept).notes
    assert "Ignored keys, which only one side has: optimizer.nesterov." in notes


def test_fewer_than_ten_seeds_make_no_band(tmp_path):
    kept = experiment(tmp_path, seeds=5, algorithms=("grpo",))
    found = judge(tmp_path, kept, curve(99, shift=-0.5))
    assert found.holds and describe_judged(found) == "no band yet, n = 5 of 10"
    died = judge(tmp_path / "died", kept, curve(99)[:3], iterations=50)
    assert not died.holds
    assert describe_judged(died) == "no band yet, n = 5 of 10; 3 of 6 points reached"


def test_a_share_ends_at_one_and_a_reward_does_not():
    y = np.linspace(0.9, 1.0, 10)[:, None]
    x = np.zeros(1)
    assert expected_bands.make_band(x, y, "eval/accuracy").high[0] == 1
    assert expected_bands.make_band(x, y, "eval/reward").high[0] > 1


def test_a_long_curve_is_judged_at_few_points(tmp_path):
    """Each further point would widen the band for all of them."""
    write_run(tmp_path, np.linspace(0, 1, 101).tolist())
    (variant,) = group_runs([read(tmp_path)])
    kept = expected_bands.describe_variant(variant, METRIC)["x"]
    assert len(kept) == 20 and (kept[0], kept[-1]) == (0, 100)


def test_of_a_run_that_goes_on_no_band_is_kept(tmp_path):
    """Its metrics would be expected of all later runs."""
    for seed in range(3):
        own = curve(seed)[: 6 - (seed == 2)]
        write_run(tmp_path / str(seed), own, seed=seed, iterations=5, going=True)
    variants = group_runs([read(path) for path in find([tmp_path])])
    with pytest.raises(
        ValueError, match="1 of 3 runs is still running, such as 2; save the band when all"
    ):
        expected_bands.save(tmp_path / "kept", variants, METRIC)
    assert not (tmp_path / "kept").exists()


def test_the_command_keeps_a_band_and_judges_by_it(tmp_path, capsys):
    for seed in range(10):
        write_run(tmp_path / "runs" / str(seed), curve(seed), seed=seed, every=10)
    main([str(tmp_path / "runs"), f"save_band={tmp_path / 'kept'}"])
    content = json.loads((tmp_path / "kept" / "expected.json").read_text())
    assert str(tmp_path) not in json.dumps(content)
    assert [one["n"] for one in content["variants"]] == [10]

    write_run(tmp_path / "new" / "a", curve(99), seed=10, every=10)
    main([str(tmp_path / "new"), f"band={tmp_path / 'kept'}"])
    assert "inside at all 5 points" in capsys.readouterr().out
    write_run(tmp_path / "new" / "b", curve(99, shift=0.3), seed=11, every=10)
    with pytest.raises(SystemExit) as exit:
        main([str(tmp_path / "new"), f"band={tmp_path / 'kept'}"])
    assert exit.value.code == 1
    assert "outside from iteration" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["save_band=kept", "x=seconds"], "x=seconds with save_band: a band is over iterations"),
        (["band=nowhere"], "band=nowhere: expected.json there cannot be read"),
    ],
)
def test_a_band_that_cannot_be_is_one_line(tmp_path, capsys, arguments, line):
    write_run(tmp_path, [0.0, 0.5])
    with pytest.raises(SystemExit) as exit:
        main([str(tmp_path), *arguments])
    said = capsys.readouterr().err.strip()
    assert exit.value.code == 2 and line in said and "\n" not in said


def test_another_metric_than_the_band_is_refused(tmp_path, kept, capsys):
    write_run(tmp_path, [0.0, 0.5])
    with pytest.raises(SystemExit):
        main([str(tmp_path), f"band={kept.folder}", "metric=eval/reward"])
    assert "stores eval/accuracy" in capsys.readouterr().err


def test_data_that_the_experiment_fixed_are_part_of_its_configuration(tmp_path):
    """Also by the seed of one of its runs."""
    fixed = {"data": {"seed": 0, "path": "letters"}}
    for seed in range(3):
        write_run(tmp_path / "runs" / str(seed), curve(seed), seed=seed, every=10, **fixed)
    runs = [read(path) for path in find([tmp_path / "runs"])]
    expected_bands.save(tmp_path, group_runs(runs), METRIC)
    kept = expected_bands.load(tmp_path)
    same = judge(tmp_path / "same", kept, curve(99), **fixed)
    assert same.holds and not same.unknown
    other = judge(tmp_path / "other", kept, curve(99), data={"seed": 77, "path": "letters"})
    assert describe_judged(other) == "different configuration: data.seed is 77, expected 0"
    follows = judge(tmp_path / "follows", kept, curve(99), data={"seed": 99, "path": "letters"})
    assert describe_judged(follows) == "different configuration: data.seed is 99, expected 0"
    assert not bands.judge(runs[0], kept).unknown


def test_a_cache_elsewhere_is_no_other_configuration(tmp_path, kept):
    model = {"path": "tiny", "seed": 99, "cache_dir": str(tmp_path)}
    assert not judge(tmp_path, kept, curve(99), model=model).unknown


def test_a_function_that_moved_to_another_module_is_the_same_configuration():
    old = {"loss": "tandem.losses.policy.ppo", "lr": 0.1}
    assert bands.compare_facts(old, {"loss": "tandem.losses.clipped.ppo", "lr": 0.1}) == ({}, [])
    other = {"loss": "tandem.losses.policy.gspo", "lr": 0.2}
    assert bands.compare_facts(old, other)[0] == {"loss": ("ppo", "gspo"), "lr": ("0.1", "0.2")}
