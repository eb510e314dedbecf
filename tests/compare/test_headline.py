"""The headline of a comparison: equal on the page and on a terminal, with the command to run."""

import itertools
import json
import shlex
import shutil

import numpy as np
import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from written_runs import write_run, write_sweep, write_task

from tandem.compare.comparison import Request, compare
from tandem.compare.headline import write_headline, write_next, write_warnings
from tandem.compare.report.payload import make_payload
from tandem.compare.table import Table
from tandem.compare.terminal import cut, show_comparison
from tandem.compare.text_table import fit_table
from tandem.record.reading.runs import find, read


def compare_runs(folder, **asked):
    return compare([read(path) for path in find([folder])], Request(**asked))


def scatter(n, gap, noise, seed=0):
    random = np.random.default_rng(seed)
    rloo = random.normal(0.6, 0.05, n)
    return {"rloo": rloo.tolist(), "grpo": (rloo + gap + random.normal(0, noise, n)).tolist()}


def test_the_terminal_says_what_the_page_says(tmp_path):
    found = compare_runs(write_sweep(tmp_path, scatter(5, 0.1, 0.01)))
    printed = " ".join(show_comparison(found).split())
    data = make_payload(found)
    for sentence in (data["headline"], *data["warnings"], *data["next"], data["meta"]):
        assert sentence in printed


def test_a_claim_of_the_headline_comes_with_its_size(tmp_path):
    found = compare_runs(write_sweep(tmp_path, scatter(5, 0.1, 0.01)))
    (pair,) = found.pairs
    low, high = pair.simultaneous
    size = f"It beats rloo by {pair.difference.mean:.3f} [{low:.3f}, {high:.3f}]."
    assert write_headline(found).endswith(size)


def test_equal_scores_tie_and_what_each_beats_is_said_of_each(tmp_path):
    """Up to rounding: the sum of the same scores depends on their order."""
    scores = [0.7, 0.6, 0.5]
    assert sum(scores) != sum(reversed(scores))
    finals = {"grpo": scores, "rloo": scores[::-1], "reinforce": [0.1, 0.11, 0.1]}
    two = compare_runs(
        write_sweep(tmp_path / "two", {name: finals[name] for name in ("grpo", "rloo")})
    )
    tie = "grpo and rloo tie for the highest eval/accuracy: 0.600, n = 3."
    assert write_headline(two) == tie
    said = write_headline(compare_runs(write_sweep(tmp_path / "three", finals)))
    by = "beats reinforce by 0.497 [0.054, 0.939]."
    assert said == f"{tie} grpo {by} rloo {by}"


def test_variants_that_tie_over_tasks_are_named_together(tmp_path):
    scores = [0.5, 0.6, 0.7, 0.6, 0.5]  # of four tasks: the middle half is 3 x 0.5 and 7 x 0.6
    for task in ("leg_counting", "chain_sum", "word_sorting", "gcd"):
        write_task(tmp_path, task, {"grpo": scores, "rloo": scores})
    said = write_headline(compare_runs(tmp_path))
    assert said.endswith("grpo and rloo tie for the highest interquartile mean: 0.570.")


def test_a_variant_that_lacks_seeds_of_the_others_is_named(tmp_path):
    finals = {"rloo": [0.6, 0.61, 0.63, 0.6, 0.62], "grpo": [0.7, 0.71, 0.73]}
    said = "grpo has no score for seeds 3, 4, unlike others: its mean is over other seeds."
    assert said in write_warnings(compare_runs(write_sweep(tmp_path, finals)))


BEHIND = {"grpo": [0.5, 0.512, 0.52, 0.52, 0.95, 0.95], "rloo": [0.6, 0.61, 0.623, 0.619]}


@pytest.mark.parametrize("gap", [0, 0.2])
def test_the_highest_mean_is_not_the_best_where_the_pairs_say_otherwise(tmp_path, gap):
    """On the seeds that both have, rloo is higher: by a claim, or with `gap` in doubt."""
    finals = BEHIND | {"rloo": [BEHIND["rloo"][0] - gap, *BEHIND["rloo"][1:]]}
    found = compare_runs(write_sweep(tmp_path, finals))
    (pair,) = found.pairs
    assert (pair.better.name, pair.distinct) == ("rloo", not gap)
    low, high = pair.simultaneous
    claim = f"Over the seeds of both, rloo beats grpo by 0.100 [{low:.3f}, {high:.3f}]."
    said = write_headline(found)
    assert said.startswith("grpo has the highest eval/accuracy: 0.659")
    assert said.endswith("It is not distinguishable from rloo." if gap else claim)
    (sentence,) = write_next(found)
    assert sentence == (
        "grpo has the highest mean over all its seeds, but not over those it shares with rloo: "
        "run the same seeds of each."
    )


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_no_line_of_a_table_is_wider_than_the_terminal(tmp_path, monkeypatch, columns):
    """No number is broken and no cell is lost."""
    monkeypatch.setenv("COLUMNS", str(columns))
    assert shutil.get_terminal_size().columns == columns
    finals = {name: [0.5 + i / 50, 0.6, 0.55] for i, name in enumerate(("grpo", "rloo", "dapo"))}
    found = compare_runs(write_sweep(tmp_path, finals))
    for table in found.tables:
        said = fit_table(table, columns)
        assert max(map(len, said.splitlines())) <= columns
        words = said.split()
        for row in table.rows:
            assert all(word in words for cell in row for word in cell.split() if len(word) < 12)


def test_columns_that_do_not_fit_go_below_beside_the_first():
    table = Table(
        name="t", title="T", columns=("name", "one", "two"), rows=[("a", "1" * 12, "2" * 12)]
    )
    assert fit_table(table, 20).split("\n\n")[1:] == [
        "name  one\n----  ------------\na     111111111111",
        "name  two\n----  ------------\na     222222222222",
    ]


def test_a_name_gives_a_terminal_no_command():
    table = Table(name="t", title="T", columns=("a", "b"), rows=[("\x1b[31mred", "1")])
    assert "\x1b" not in fit_table(table, 80)


def sweep_of(folder, *own, typed=(), sweep_dir="runs/mine"):
    """Three seeds of two algorithms, in the folders of a sweep over `own` beside the seed."""
    for algorithm in ("grpo", "rloo"):
        for seed in range(3):
            words = [f"algorithm={algorithm}", *own, f"seed={seed}"]
            where = {"overrides": [*typed, *words], "sweep_dir": sweep_dir}
            changes = {"seed": seed, "algorithm": algorithm, **where}
            write_run(folder / ",".join(words), [0.0, 0.5 + seed / 10], **changes)
    return folder


def test_below_five_seeds_the_next_step_is_five(tmp_path):
    sentence, command = write_next(compare_runs(sweep_of(tmp_path, typed=["group_size=8"])))
    assert sentence.startswith("Run 5 seeds of each")
    assert command == (
        "python -m tandem train -m algorithm=grpo,rloo 'seed=range(0,5)' group_size=8 "
        "sweep_dir=runs/mine"
    )


def test_the_command_sweeps_what_named_the_folders_so_that_no_run_trains_again(tmp_path):
    _, command = write_next(compare_runs(sweep_of(tmp_path, "optimizer.lr=0.001")))
    words = shlex.split(command.partition(" -m tandem train -m ")[2])
    parts = OverridesParser.create().parse_overrides(words)
    swept = [part for part in parts if part.is_sweep_override()]
    values = [[f"{p.key_or_group}={x}" for x in p.sweep_string_iterator()] for p in swept]
    named = {",".join(sorted(own)) for own in itertools.product(*values)}
    assert {path.name for path in tmp_path.iterdir()} < named and len(named) == 10


def test_no_command_adds_seeds_to_a_sweep_whose_folders_it_would_not_find(tmp_path):
    """Such as those of a sweep without seeds: the first seed would be trained twice."""
    for algorithm in ("grpo", "rloo"):
        where = {"algorithm": algorithm, "sweep_dir": "runs/mine"}
        write_run(tmp_path / f"algorithm={algorithm}", [0.0, 0.5], **where)
    (sentence,) = write_next(compare_runs(tmp_path))
    assert sentence.startswith("Run 5 seeds of each")


def test_from_five_on_it_is_the_seeds_that_would_tell_the_best_from_the_others(tmp_path):
    found = compare_runs(write_sweep(tmp_path, scatter(8, 0.02, 0.04, seed=4)))
    (pair,) = found.pairs
    sentence, command = write_next(found)
    likely = pair.seeds_needed.likely
    assert not pair.distinct and likely <= 30
    assert sentence.startswith(f"Run {likely} seeds of each to separate {pair.better.name} from")
    assert f"seed=range(0,{likely})" in command


def test_a_small_difference_is_named_instead_of_hundreds_of_seeds(tmp_path):
    found = compare_runs(write_sweep(tmp_path, scatter(8, 0.0005, 0.04, seed=1)))
    (sentence,) = write_next(found)
    most = found.pairs[0].simultaneous[1]
    assert f"at most {most:.3f} above" in sentence and "choose by cost" in sentence


def test_nothing_is_left_to_run_where_all_is_told_apart(tmp_path):
    found = compare_runs(write_sweep(tmp_path, scatter(5, 0.2, 0.01)))
    (sentence,) = write_next(found)
    assert sentence.startswith("grpo is the best of these")


def test_of_a_metric_of_unknown_direction_none_is_the_best(tmp_path):
    finals = scatter(5, 0.2, 0.01)
    for algorithm, scores in finals.items():
        for seed, score in enumerate(scores):
            folder, also = tmp_path / f"{algorithm}{seed}", {"eval/missing": [score]}
            write_run(folder, [0.5], seed=seed, algorithm=algorithm, also=also)
    found = compare_runs(tmp_path, metric="eval/missing")
    assert "It is above rloo by" in write_headline(found)
    assert write_next(found) == []


@pytest.mark.parametrize("n", [3, 6])
def test_variants_that_tie_do_not_lack_seeds_of_each_other(tmp_path, n):
    """By rounding rloo has the higher mean, and grpo is not below it over the same seeds."""
    finals = {"grpo": [0.16, 0.19, 0.09] * (n // 3), "rloo": [0.09, 0.16, 0.19] * (n // 3)}
    found = compare_runs(write_sweep(tmp_path, finals), power_for=0.1)
    assert [(pair.better.name, pair.other.name) for pair in found.pairs] == [("grpo", "rloo")]
    sentence, command = write_next(found)
    assert sentence.startswith("Run 5 seeds of each" if n == 3 else "Run 8 seeds of each to sep")
    assert "algorithm=grpo,rloo" in command or "algorithm=rloo,grpo" in command


def two(folder, **changes):
    """Two algorithms; `changes` apply to the second."""
    for seed in range(3):
        write_run(folder / f"grpo{seed}", [0.1], seed=seed, schedule={"warmup": 5}, group_size=8)
        own = {"schedule": {"warmup": 5}, "group_size": 8} | changes
        write_run(folder / f"rloo{seed}", [0.2], seed=seed, algorithm="rloo", **own)
    return compare_runs(folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"optimizer": {"lr": 3e-4}}, ["learning rate (grpo 0.0001, rloo 0.0003)"]),
        ({"group_size": 4}, ["group size (grpo 8, rloo 4)"]),
        ({"schedule": {"warmup": 0}}, ["warm-up (grpo 5, rloo 0)"]),
        ({"num_minibatches": 2, "epochs": 2}, ["updates per iteration (grpo 1, rloo 4)"]),
    ],
)
def test_one_line_names_what_differs_beside_what_is_compared(tmp_path, changes, said):
    lines = write_warnings(two(tmp_path, **changes))
    wanted = [f"The variants also differ in: {one}." for one in said]
    assert lines == wanted


def test_what_is_compared_is_no_warning(tmp_path):
    for rate in (1e-4, 3e-4):
        typed = ["algorithm=grpo", f"optimizer.lr={rate}"]
        write_run(tmp_path / str(rate), [0.1], optimizer={"lr": rate}, overrides=typed)
    assert write_warnings(compare_runs(tmp_path)) == []


def test_an_algorithm_without_a_recipe_beside_one_with_is_said_so(tmp_path):
    bare = {"algorithm": "rloo", "data": "letters", "recipe": None}
    (line,) = write_warnings(two(tmp_path, choices=bare))
    assert line.startswith(
        "rloo has no recipe and used the defaults; the others used tuned numbers"
    )


def run_plugin(folder, seed, *hashes):
    run = write_run(folder / f"{seed}", [0.1], seed=seed)
    starts = [{"code": {"commit": None, "plugins": {"my_loss": sha}}} for sha in hashes]
    (run / "manifest.json").write_text(json.dumps({"starts": starts}))


def test_a_plugin_that_was_edited_between_the_seeds_of_a_variant_is_said_so(tmp_path):
    for seed in (0, 1):
        run_plugin(tmp_path, seed, "a" * 64)
    assert write_warnings(compare_runs(tmp_path)) == []
    run_plugin(tmp_path, 2, "a" * 64, "b" * 64)  # edited, then resumed
    (line,) = write_warnings(compare_runs(tmp_path))
    assert line == (
        "Plugin my_loss changed between these runs, whose numbers are of different code: "
        "aaaaaaaa in grpo seed 0, grpo seed 1, grpo seed 2; bbbbbbbb in grpo seed 2."
    )


def test_the_versions_of_a_plugin_are_hashes_and_its_name_a_module(tmp_path):
    for seed, sha in enumerate(("a" * 64, "<script>" * 8)):
        run_plugin(tmp_path, seed, sha)
    assert write_warnings(compare_runs(tmp_path)) == []


def write_losses(folder, *targets):
    for target in targets:
        own = {"loss": {"_target_": target, "_partial_": True, "power": 1}}
        write_run(folder / target, [0.1], algorithm="grpo")
        config = folder / target / "config.yaml"
        written = yaml.safe_load(config.read_text()) | {"overrides": ["algorithm/loss=x"]}
        config.write_text(yaml.safe_dump(written | {"algorithm": own}))
    found = compare_runs(folder)
    table = next(t for t in found.tables if t.name == "configuration")
    return sorted(one.name for one in found.variants), sorted(table.rows)


def test_a_function_of_a_plugin_is_named_without_its_modules(tmp_path):
    names, rows = write_losses(tmp_path, "mine.parts.mild", "tandem.losses.policy.ppo")
    assert names == ["loss=mild", "loss=ppo"]
    assert rows == [("loss=mild", "mild"), ("loss=ppo", "ppo")]


def test_functions_of_one_name_keep_the_modules_that_tell_them_apart(tmp_path):
    names, _ = write_losses(tmp_path, "mine.ppo", "other.ppo", "tandem.losses.policy.ppo")
    assert names == ["loss=mine.ppo", "loss=other.ppo", "loss=ppo"]


def test_many_differences_are_cut_in_the_terminal_alone(tmp_path):
    common = {f"a{i}": i for i in range(10)} | {f"c{i}": i for i in range(20)}
    for name, shift, lone in (("grpo", 0, {f"b{i}": i for i in range(10)}), ("rloo", 1, {})):
        own = {"model": {key: i + shift for key, i in common.items()} | lone}
        write_run(tmp_path / name, [0.1], algorithm=name, **own)
    found = compare_runs(tmp_path)
    (table,) = [t for t in found.tables if t.name == "configuration"]
    said = cut(table)
    assert len(table.rows) == 41 and len(said.rows) == 24  # the algorithm, and 40 keys
    assert not any("-" in row for row in said.rows)  # keys of both come first
    assert said.notes == ["17 more keys differ; out=FOLDER writes all of them."]
    assert said.notes[0] in show_comparison(found) and cut(said) == said


def test_many_values_beside_what_is_compared_are_counted(tmp_path):
    for i in range(5):
        lr = {"lr": 10.0**-i}
        write_run(tmp_path / f"{i}", [0.1], algorithm=f"a{i}", optimizer=lr)
    said = write_warnings(compare_runs(tmp_path))
    assert said == ["The variants also differ in: learning rate (5 values)."]


def test_differences_are_short_and_leave_out_what_has_no_effect(tmp_path):
    def part(name, **numbers):
        return {"_target_": f"tandem.losses.policy.{name}", "_partial_": True, **numbers}

    common = {"group_size": 8, "schedule": {"warmup": 5}}
    for name, loss, kl, proposed in (
        ("grpo", part("ppo", clip_low=0.2), {"coef": 0.0, "kind": "k1"}, 4),
        ("rloo", part("reinforce"), {"coef": 0.0, "kind": "k3"}, 16),
    ):
        own = {"loss": loss, "kl": kl, "group_size": proposed}
        write_run(tmp_path / name, [0.1], algorithm=name, **common)
        config = tmp_path / name / "config.yaml"
        config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | {"algorithm": own}))
    table = next(t for t in compare_runs(tmp_path).tables if t.name == "configuration")
    assert table.rows == [
        ("algorithm", "grpo", "rloo"),
        ("loss", "ppo(clip_low=0.2)", "reinforce"),
    ]


def test_a_fixed_seed_of_the_data_is_no_difference_of_variants_without_the_run_of_that_seed(
    tmp_path,
):
    for algorithm, seeds in (("grpo", (0, 1, 2)), ("rloo", (1, 2))):
        for seed in seeds:
            data = {"seed": 0, "path": "letters"}
            write_run(
                tmp_path / f"{algorithm}{seed}", [0, 1], seed=seed, algorithm=algorithm, data=data
            )
    table = next(t for t in compare_runs(tmp_path).tables if t.name == "configuration")
    assert "seed" not in str((table.columns, table.rows))
