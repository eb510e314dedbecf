"""The labels of a run in other services."""

import pytest

from tandem.record import labels


def config(*overrides: str, **changes) -> dict:
    chosen = {"algorithm": "grpo", "model": "tiny_lm", "dynamics": "autoregressive"}
    return {
        "seed": 0,
        "iterations": 100,
        "optimizer": {"_target_": "torch.optim.AdamW", "_partial_": True, "lr": 1e-4},
        "reward": {"math_verify": {}, "length": {}},
        "choices": {**chosen, "data": "jsonl", "experiment": None},
        "overrides": list(overrides),
        "run_dir": "/home/me/runs/1",
        "cache_dir": "/home/me/.cache",
    } | changes


def test_choices_are_flat_and_several_rewards_are_one():
    assert labels.choices(config(sweep_dir="/home/me/runs/rates")) == {
        **{"algorithm": "grpo", "model": "tiny_lm", "dynamics": "autoregressive", "data": "jsonl"},
        **{"reward": "math_verify+length", "seed": 0, "sweep": "rates"},
    }


def test_numbers_are_nested_and_nothing_says_where_the_run_lies():
    found = labels.settings(config())
    assert found["optimizer"] == {"_target_": "torch.optim.AdamW", "lr": 1e-4}
    assert found["iterations"] == 100
    assert "/home/me" not in str(found)


def test_seeds_share_a_group_in_whatever_order_they_were_typed():
    one = labels.group(config("seed=0", "optimizer.lr=1e-4", "data=jsonl", "logger=wandb"))
    other = labels.group(config("data=jsonl", "optimizer.lr=1e-4", "seed=7", "run_dir=x"))
    assert one == other == "tiny_lm-grpo data=jsonl optimizer.lr=1e-4"


@pytest.mark.parametrize(
    "typed", ["optimizer.lr=1e-5", "algorithm.loss.clip_low=1", "+reward.x.weight=2", "~recipe"]
)
def test_what_makes_another_run_makes_another_group(typed):
    assert labels.group(config(typed)) != labels.group(config())


@pytest.mark.parametrize("typed", ["trainer.devices=2", "logger.wandb.tags=[a]", "threads=1"])
def test_where_and_how_it_is_watched_does_not(typed):
    assert labels.group(config(typed)) == labels.group(config())


def test_a_sweep_comes_first():
    swept = config("seed=1", "sweep_dir=runs/rates", sweep_dir="runs/rates")
    assert labels.group(swept) == "rates-tiny_lm-grpo"


def test_a_long_group_is_cut_and_stays_one_of_its_own():
    long = [f"algorithm.loss.clip_low=0.{i}" for i in range(10)]
    one, other = labels.group(config(*long)), labels.group(config(*long, "epochs=2"))
    assert len(one) == len(other) == labels.LONGEST
    assert one != other


def test_tags_are_the_options_that_were_chosen():
    want = ["grpo", "tiny_lm", "autoregressive", "jsonl", "math_verify", "length"]
    assert labels.tags(config()) == want


def test_an_empty_configuration_has_labels_too():
    assert labels.choices({}) == labels.settings({}) == {}
    assert labels.group({}) == ""
    assert labels.tags({}) == []
