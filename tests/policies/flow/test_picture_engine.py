"""Rollout engines for images: a plugin builds them for a flow policy with copied weights."""

import json

import pytest
from painter import Painter

import tandem
from tandem.config import ConfigError, check, compose
from tandem.policies.engines.paged import Paged
from tandem.policies.flow.records import FlowSampling
from tandem.policies.language.records import Sampling

SLOW, LORA = pytest.mark.slow, ("model.lora={r: 2, alpha: 4}",)
QUICK = (
    "model=tiny_flow", "warm_start=null", "~recipe", "iterations=2", "prompts_per_step=2",
    "group_size=4", "num_minibatches=2", "rollout.steps=3", "model.adapter.channels=[16]",
    "reward=colour_share", "evaluation.every=null", "guards.no_signal=9", "checkpoints.every=9",
    "optimizer.lr=1e-3", "algorithm.kl.coef=0", "plugins=[painter]",
)  # fmt: skip


def train(folder, *words):
    tandem.train(*QUICK, *words, f"run_dir={folder}")
    return [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()][:-1]


@pytest.mark.parametrize("lora", [(), pytest.param(LORA, marks=SLOW)], ids=["whole", "adapter"])
@pytest.mark.parametrize("algorithm", ["flow_grpo", pytest.param("nft", marks=SLOW)])
def test_a_plugin_with_a_copy_of_the_weights_trains_as_the_policy_by_itself(
    tmp_path, algorithm, lora
):
    live = ("algorithm.rollout_weights=live",) if algorithm == "nft" else ()
    begun = ()
    if lora:  # a new network returns 0, and no layer but its last has a gradient
        train(tmp_path / "begun", "algorithm=sft", "num_minibatches=1", "group_size=1")
        begun = (f"model.path={tmp_path / 'begun' / 'model'}",)
    words = (f"algorithm={algorithm}", *live, *lora, *begun)
    want = train(tmp_path / "own", *words)
    got = train(tmp_path / "painter", *words, "rollout=painter")
    assert want[0]["optim/grad_norm"] > 0
    for ours, line in zip(got, want, strict=True):
        shared = {name for name in line if not name.startswith("rollout_corr/")}
        assert {n: ours[n] for n in shared} == pytest.approx(
            {n: line[n] for n in shared}, rel=1e-3, abs=1e-5
        )


def test_a_copy_that_lags_behind_is_seen(tmp_path):
    every = ("rollout=painter", "rollout.engine.every=2")
    quiet = ("guards.max_mismatch=9", "guards.first_update_ratio=9")
    lines = train(tmp_path / "run", "algorithm=flow_grpo", *every, *quiet)
    assert lines[0]["rollout_corr/abs_logp_diff"] < 1e-5 < lines[1]["rollout_corr/abs_logp_diff"]


REFUSED = {
    ("model=tiny_lm", "rollout=painter"): "rollout=painter samples pictures, but model=tiny_lm",
    ("model=tiny_flow", "rollout=paged"): "rollout=paged samples tokens, but model=tiny_flow makes",
    (
        "model=flux1_kontext",
        "rollout=painter",
        "data.path=x",
    ): r"rollout=painter receives only texts \(sees=False\), and model=flux1_kontext reads",
    (
        "model=tiny_flow",
        "rollout=painter",
        "trainer=fsdp2",
        "trainer.devices=2",
    ): "rollout=painter receives whole weights from one rank, and trainer.strategy=fsdp2 shards",
}
LATE = {
    (
        "algorithm=flow_grpo",
        "rollout.staleness=1",
    ): "staleness=1: a picture engine has only the newest",
    ("algorithm=nft",): "rollout_weights=old: a picture engine has only the live",
}


@pytest.mark.parametrize("words", REFUSED)
def test_an_engine_that_does_not_fit_is_refused_in_one_line(words):
    with pytest.raises(ConfigError, match=REFUSED[words]):
        check(compose(["plugins=[painter]", *words]))


def test_an_engine_that_is_given_pictures_and_a_model_that_asks_for_none_are_admitted(monkeypatch):
    words = ["plugins=[painter]", "rollout=painter", "data.path=x"]
    check(compose([*words, "model=flux2_klein"]))
    with pytest.raises(ConfigError, match="receives only texts"):
        check(compose([*words, "model=flux2_klein", "model.adapter.images=1"]))
    monkeypatch.setattr(Painter, "sees", True)
    check(compose([*words, "model=flux1_kontext"]))


def test_settings_take_engines_of_their_own_kind_alone():
    with pytest.raises(ValueError, match="=Paged samples tokens, and this policy makes pictures"):
        FlowSampling(steps=2, engine=Paged())
    with pytest.raises(ValueError, match="=Painter samples pictures, and this policy makes tokens"):
        Sampling(max_new_tokens=2, engine=Painter())


@pytest.mark.parametrize("words", LATE)
def test_weights_that_an_engine_has_not_are_refused_in_one_line(words, tmp_path):
    with pytest.raises(ConfigError, match=LATE[words]):
        train(tmp_path / "run", "rollout=painter", *words)
