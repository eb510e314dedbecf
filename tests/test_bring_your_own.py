"""Parts that were brought from outside the package: each is chosen by name, and trains."""

import json
from pathlib import Path

import pytest

import tandem
from tandem.config import check, compose

pytestmark = pytest.mark.usefixtures("unpainted")

FOLDER = Path(__file__).parents[1] / "experiments" / "bring_your_own"
QUICK = (
    "~recipe", "warm_start=null", "iterations=2", "evaluation.every=null", "guards.no_signal=9",
    "prompts_per_step=4", "group_size=4",
)  # fmt: skip
TOKENS = ("model=tiny_lm", "reward=target_length", "reward.target_length.function.target=5")
PICTURES = ("rollout.steps=3", "data=shapes", "reward=jpeg_compressibility")
FLOW = ("model=tiny_flow", "algorithm=flow_grpo", "model.adapter.num_layers=1", *PICTURES)
# Folder -> what chooses its part, and a number of it.
PARTS = {
    "policy_loss": (*TOKENS, "algorithm/loss=tempered", "algorithm.loss.power=0.7"),
    "adv_estimator": (*TOKENS, "algorithm/advantage=over_median", "algorithm.advantage.scale=2"),
    "reward": ("model=tiny_lm", "reward=vowels", "reward.vowels.function.wanted=ab"),
    "weights": (*TOKENS, "algorithm/weights=root_length"),
    "correction": (*TOKENS, "algorithm/correction=root", "algorithm.correction.most=3"),
    "kl": (*TOKENS, "algorithm/kl=absolute", "algorithm.kl.coef=0.1"),
    "noise_schedule": (*FLOW, "dynamics/schedule=cosine", "dynamics.schedule.power=0.9"),
    "dynamics": (*FLOW, "dynamics=fading_sde", "dynamics.kernel.noise_level=0.6"),
    "dataset": (*TOKENS, "data=reversals", "data.length=3"),
    "model": ("model=tiny_llama", *TOKENS[1:], "rollout.max_new_tokens=9", "model.build.layers=2"),
    "rollout_engine": (*TOKENS, "rollout=copying", "rollout.engine.every=1"),
    "flow_family": ("model=conv_flow", *PICTURES),
}


def chosen(part):
    return (f"plugins=[experiments.bring_your_own.{part}]", *QUICK, *PARTS[part])


def test_every_kind_of_part_has_a_folder_that_shows_it():
    kinds = {name.removeprefix("register_") for name in tandem.__all__ if name != "train"}
    assert (
        kinds
        == PARTS.keys()
        == {path.name for path in FOLDER.iterdir() if path.is_dir()} - {"__pycache__"}
    )


@pytest.mark.parametrize("part", PARTS)
def test_a_part_takes_thirty_lines_at_most(part):
    files = [path for path in (FOLDER / part).rglob("*") if path.suffix in (".py", ".yaml")]
    assert sum(len(path.read_text().splitlines()) for path in files) <= 30


@pytest.mark.parametrize("part", PARTS)
def test_a_part_from_outside_is_trained_for_two_iterations(part, tmp_path):
    tandem.train(*chosen(part), f"run_dir={tmp_path / 'run'}")
    lines = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    norms = [line["optim/grad_norm"] for line in lines if "optim/grad_norm" in line]
    assert len(norms) == 2 and all(norm > 0 for norm in norms)


@pytest.mark.parametrize("part", [part for part, words in PARTS.items() if "." in words[-1]])
def test_a_misspelt_number_of_a_part_is_refused(part):
    *words, last = chosen(part)
    key, _, value = last.partition("=")
    with pytest.raises(tandem.config.ConfigError, match=f"unknown key '{key}x': did you mean"):
        check(compose([*words, f"{key}x={value}"]))
