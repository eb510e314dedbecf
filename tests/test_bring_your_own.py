"""Parts from outside the package: each is chosen by name, and trains."""

import json

import pytest
import torch
from bring_your_own import FOLDER, PARTS, ROOT, choose, page
from ladder import few_of
from records import rollout, scores

import tandem
from experiments.bring_your_own.adv_estimator import over_median
from experiments.bring_your_own.flow_family import ConvFlow
from tandem.config import ConfigError, check, compose

QUICK = (
    "~recipe", "warm_start=null", "iterations=2", "evaluation.every=null", "guards.no_signal=9",
    "prompts_per_step=4", "group_size=4",
)  # fmt: skip
SCORED = ("reward=target_length", "reward.target_length.function.target=5")
PICTURES = ("data=shapes", "reward=jpeg_compressibility", "rollout.steps=3")
# Overrides with which a run of untrained weights learns something.
BESIDE = dict.fromkeys(("noise_schedule", "dynamics", "flow_family"), PICTURES) | {"reward": ()}


def train(folder, *words):
    tandem.train(*QUICK, *few_of(*words), f"run_dir={folder}")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "optim/grad_norm" in line]


def test_every_kind_of_part_has_a_folder_that_shows_it_or_a_row_of_the_guides():
    kinds = {name.removeprefix("register_") for name in tandem.__all__ if name != "train"}
    folders = {path.parent.name for path in FOLDER.glob("*/__init__.py")}
    guides = (ROOT / "docs" / "howto" / "index.md").read_text()
    assert PARTS.keys() == folders
    assert folders < kinds
    assert [kind for kind in kinds if f"register_{kind}" not in guides] == []


@pytest.mark.parametrize("part", PARTS)
def test_a_page_shows_the_file_that_is_trained_and_the_command_that_trains_it(part):
    shown = f"<!-- code: experiments/bring_your_own/{part}/__init__.py -->"
    assert shown in page(part)
    words = [f"'{word}'" if "{" in word else word for word in choose(part)]  # a shell splits them
    assert f"    python train.py {' '.join(words)}\n" in page(part)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_takes_thirty_lines_at_most(part):
    files = [path for path in (FOLDER / part).rglob("*") if path.suffix in (".py", ".yaml")]
    assert sum(len(path.read_text().splitlines()) for path in files) <= 30


@pytest.mark.parametrize("part", PARTS)
def test_a_part_from_outside_is_trained_for_two_iterations(part, tmp_path):
    lines = train(tmp_path / "run", *choose(part), *BESIDE.get(part, SCORED))
    assert len(lines) == 2 and all(line["optim/grad_norm"] > 0 for line in lines)


@pytest.mark.parametrize("part", [part for part in PARTS if "." in PARTS[part][1][-1]])
def test_a_misspelt_number_of_a_part_is_refused(part):
    *words, last = choose(part)
    key, _, value = last.partition("=")
    with pytest.raises(ConfigError, match=f"unknown key '{key}x': did you mean"):
        check(compose([*words, f"{key}x={value}"]))


def test_an_engine_with_a_copy_of_the_weights_samples_what_our_own_loop_does(tmp_path):
    """A stale copy is detected by the difference of the log-probabilities."""
    plugin, engine, _ = choose("rollout_engine")
    words = (plugin, *SCORED, "optimizer.lr=0.01", "schedule=constant")
    local = train(tmp_path / "local", *words)
    fresh = train(tmp_path / "fresh", *words, engine)
    stale = train(tmp_path / "stale", *words, engine, "rollout.engine.every=2",
                    "guards.max_mismatch=9")  # fmt: skip
    rewards = [[line["reward/mean"] for line in run] for run in (local, fresh)]
    assert rewards[0] == pytest.approx(rewards[1])
    apart = [run[-1]["rollout_corr/abs_logp_diff"] for run in (fresh, stale)]
    assert apart[0] < 1e-5 < 1e-3 < apart[1]


def test_the_weights_of_a_family_depend_on_the_seed_alone():
    first, again, other = (ConvFlow(seed=seed).load(None, None).read.weight for seed in (0, 0, 1))
    assert first.equal(again) and not first.equal(other)


def test_moves_are_compared_in_the_states_that_a_function_names():
    check(compose([*choose("environment"), "reward=episode", "algorithm=group_in_group"]))


def test_the_advantage_over_a_median_leaves_missing_scores_out():
    group = torch.tensor([0] * 4 + [1] * 4)
    total = torch.tensor([1.0, 2, 3, 0, 0, 0, 1, 1])
    rows = rollout(torch.ones(8, 1, dtype=torch.bool), group)
    got = over_median(scores(total, scored=torch.tensor([True] * 3 + [False] + [True] * 4)), rows)
    assert got[:, 0].tolist() == [-1, 0, 1, 0, -0.5, -0.5, 0.5, 0.5]
