"""Arguments that no file names work as keys of a command line, like those of files."""

import inspect
import re
from importlib import import_module
from inspect import Parameter

import pytest
from omegaconf import OmegaConf

from benchmarks.structure import user_keys
from tandem.config import ConfigError, build, check, compose
from tandem.config.arguments import fill_defaults, list_defaulted, list_left_out_keys
from tandem.config.composition import conf_folder

TARGETS = sorted(
    {
        found
        for path in conf_folder().rglob("*.yaml")
        for found in re.findall(r"_target_: (tandem[\w.]+)", path.read_text())
    }
)


def of_inspect(target: str) -> set[str]:
    home, _, name = target.rpartition(".")
    parameters = inspect.signature(getattr(import_module(home), name)).parameters.values()
    return {p.name for p in parameters if p.default is not Parameter.empty}


@pytest.mark.parametrize("target", TARGETS)
def test_the_source_says_what_the_imported_function_does(target):
    assert {*list_defaulted(target)} == of_inspect(target)


def test_a_library_s_function_is_not_read():
    assert list_defaulted("torch.optim.AdamW") == ()


SET = {
    "algorithm.entropy.target=0.3": lambda cfg: cfg.algorithm.entropy.target == 0.3,
    "algorithm.entropy={coef: 0.1, step: 2.0}": lambda cfg: cfg.algorithm.entropy.step == 2.0,
    "algorithm.kl.kl_target=0.1": lambda cfg: cfg.algorithm.kl.kl_target == 0.1,
    "reward.exact_match.weight=2": lambda cfg: cfg.reward.exact_match.weight == 2,
    "+reward.exact_match.weight=2": lambda cfg: cfg.reward.exact_match.weight == 2,
    "model.liger=true": lambda cfg: cfg.model.liger,
    "evaluation.split=test": lambda cfg: cfg.evaluation.split == "test",
    "rollout.engine=null": lambda cfg: cfg.rollout.engine is None,
}


@pytest.mark.parametrize("line", SET)
def test_an_argument_that_no_file_names_is_set_as_any_other(line):
    assert SET[line](compose([line]))


def test_what_is_set_so_reaches_the_function():
    assert build(compose(["reward.exact_match.weight=2"]).reward)["exact_match"].weight == 2


REFUSED = {
    "algorithm.entropy.targt=0.3": "did you mean 'algorithm.entropy.target'?",
    "rollout.top_q=0.9": "did you mean 'rollout.top_p'?",
    "reward.exact_match.rang=[0,1]": "did you mean 'reward.exact_match.range'?",
    "algorithm.critic.lr=1": "unknown key 'algorithm.critic.lr': it comes with algorithm=ppo",
    "~rollout.engine": "rollout.engine is at its default already",
    "optimizer.epsilon=1": "unknown key 'optimizer.epsilon'",
}


@pytest.mark.parametrize("line", REFUSED)
def test_one_that_is_misspelt_is_refused_with_the_name_that_was_meant(line):
    with pytest.raises(ConfigError, match=re.escape(REFUSED[line])):
        compose([line])


def test_a_value_that_does_not_fit_is_refused_under_its_key():
    with pytest.raises(ConfigError, match=r"^rollout\.top_k: expected int"):
        check(compose(["rollout.top_k=some"]))


def test_a_run_of_tokens_shows_no_more_than_its_user_chooses_among():
    shown = user_keys(compose(["model=tiny_lm", "algorithm=grpo"]))
    assert len(shown) <= 93
    assert not {*shown} & {*list_left_out_keys(compose([]))}


def test_a_record_names_the_defaults_that_files_leave_out():
    config = OmegaConf.to_container(compose([]), resolve=True)
    kept = fill_defaults(config)
    assert "top_p" not in config["rollout"] and kept["rollout"]["top_p"] == 1.0
    assert {name: kept[name] for name in ("seed", "iterations")} == {
        name: config[name] for name in ("seed", "iterations")
    }


def test_a_key_of_the_users_own_may_hold_a_dot():
    """Such as a source of data.of or of teachers, which no override can reach."""
    node = {"_target_": "tandem.data.sort.sort_ladder"}
    cfg = OmegaConf.create({"data": {"of": {"math.v1": node}}})
    assert "data.of.math.v1.held_out" in list_left_out_keys(cfg)


def test_a_reward_whose_keys_could_not_be_written_is_refused(tmp_path, monkeypatch):
    (tmp_path / "dotted_reward.py").write_text(
        "from tandem import register_reward\n"
        "@register_reward('v1.5')\n"
        "def scored(output, prompt):\n"
        "    return 1.0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError) as refused:
        compose(["plugins=[dotted_reward]", "reward=v1.5", "sed=3"])
    assert str(refused.value) == (
        "reward.v1.5: a dot separates keys, so no key of v1.5 could be set; name it v1_5"
    )
