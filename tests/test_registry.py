"""A decorated function is an option of its group, configured by its keyword defaults."""

import functools
import json
import shlex
import subprocess
import sys

import pytest
import torch
from hydra.core.config_store import ConfigStore

import tandem
from tandem import (
    register_adv_estimator,
    register_policy_loss,
    register_reward,
    register_truncation,
)
from tandem.config import ConfigError, build, check, compose
from tandem.config.composition import conf_folder
from tandem.config.registered import list_own_options, store_options
from tandem.contracts import REGISTERED
from tandem.launch.devices import check_devices
from tandem.rewards import Rewards, batched
from tandem.types import Prompt

pytestmark = pytest.mark.usefixtures("unregistered")

PLUGIN = """
from tandem import register_reward
from tandem.rewards import batched

@register_reward
def shouting(output, prompt, *, alpha: float = 1.0, words: list[str] = ["yes"]):
    return alpha * (output in words)

@register_reward("loud")
@batched
def many(outputs, prompts, *, scale: float):
    return [scale * output.isupper() for output in outputs]

@register_reward
class Starts:
    def __init__(self, letters: str, *, weight: float = 2.0):
        self.letters, self.weight = letters, weight

    def __call__(self, output, prompt):
        return self.weight * output.startswith(self.letters)
"""


TRAINED = """
import torch
from tandem import register_adv_estimator, register_policy_loss

@register_adv_estimator
def scaled(scores, rollout, *, by: float = 2.0):
    return by * scores.total[:, None] * rollout.mask

@register_adv_estimator("from_rewards")
def summed(rewards, mask, *, baseline: float = 0.0):
    returns = rewards.flip(1).cumsum(1).flip(1) * mask
    return (returns - baseline) * mask, returns

@register_policy_loss(reads={"old_logp"})
def by_steps(batch, *, alpha: float = 0.5, **more):
    return -batch.advantages * (alpha * batch.logp + (1 - alpha) * batch.old_logp)

@register_policy_loss("averaged")
def over_tokens(old_logp, logp, advantages, mask, *, alpha: float = 0.5, floor: float):
    ratio = (logp - old_logp).exp().clamp(min=floor)
    return -(alpha * ratio * advantages * mask).sum() / mask.sum(), {"my/ratio": ratio[mask].mean()}
"""
OWN_LOSS = (
    "algorithm/loss=averaged algorithm.loss.floor=0 algorithm/importance_sampling=none ~recipe "
    "algorithm/weights=token_mean"
)
QUICK = (
    "warm_start=null iterations=2 prompts_per_step=4 group_size=4 evaluation.every=null "
    "data.prompts.count=40 data.demonstrations.count=40 "
    "guards.no_signal=9 reward=target_length reward.target_length.function.target=5 "
    "algorithm/advantage=from_rewards algorithm.advantage.baseline=0.1"
)


OF_FLOWS = """
from tandem.contracts import register_ema_decay, register_solver

@register_ema_decay
def halving(count, *, per: int = 8):
    return 1 - 0.5 ** (1 + count / per)

@register_solver
def midpoint(levels, *, order: int = 2): ...
"""


def write(text, name, folder, monkeypatch):
    (folder / f"{name}.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    yield f"plugins=[{name}]"
    sys.modules.pop(name, None)


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    yield from write(PLUGIN, "shouting_plugin", tmp_path, monkeypatch)


@pytest.fixture
def of_flows(tmp_path, monkeypatch):
    yield from write(OF_FLOWS, "flow_plugin", tmp_path, monkeypatch)


@pytest.fixture
def trained(tmp_path, monkeypatch):
    yield from write(TRAINED, "trained_plugin", tmp_path, monkeypatch)


def read_option(group, name):
    store_options(conf_folder())
    return ConfigStore.instance().load(f"{group}/{name}.yaml").node


def plain(output, prompt, *, alpha: float = 1.0):
    return alpha


@pytest.mark.parametrize("name", tandem.__all__)
def test_every_name_of_the_package_exists(name):
    assert callable(getattr(tandem, name))


def test_a_plugin_s_reward_is_chosen_by_name_and_set_by_keyword(plugin):
    overrides = [plugin, "reward=[shouting,loud]", "reward.shouting.function.alpha=2"]
    node = compose([*overrides, "reward.loud.function.scale=0.5", "reward.loud.weight=4"]).reward
    rewards = Rewards(build(node, "reward"))
    prompts = [Prompt(id=i, source="t", text="?") for i in range(2)]
    scores = rewards(["yes", "NO"], prompts)
    assert scores.parts["shouting"].tolist() == [2.0, 0.0]
    assert scores.parts["loud"].tolist() == [0.0, 0.5]
    assert scores.total.tolist() == [2.0, 2.0]


def test_what_a_class_is_built_with_is_a_key_by_keyword_or_not(plugin):
    chosen = [plugin, "reward=Starts", "warm_start=null"]
    node = compose([*chosen, "reward.Starts.function.letters=ye"]).reward
    prompts = [Prompt(id=i, source="t", text="?") for i in range(2)]
    assert Rewards(build(node, "reward"))(["yes", "NO"], prompts).total.tolist() == [2.0, 0.0]
    with pytest.raises(ConfigError, match=r"^reward\.Starts\.function\.letters is not set"):
        check(compose(chosen))


def test_a_keyword_that_the_function_does_not_have_is_refused(plugin):
    with pytest.raises(ConfigError, match=r"reward\.shouting\.function\.alhpa"):
        compose([plugin, "reward=shouting", "reward.shouting.function.alhpa=2"])


def test_the_decorator_gives_the_function_back():
    assert register_reward(plain) is plain
    assert plain("", None, alpha=3) == 3


def test_defaults_become_configuration_and_a_keyword_without_one_must_be_given():
    def scored(output, prompt, *, low: float, high: float = 2.0, tags: tuple[str, ...] = ("a",)):
        return low

    scored.__qualname__ = "scored"
    register_reward(scored)
    node = read_option("reward", "scored").scored
    assert node.timeout == 300.0  # other arguments of Reward have their defaults
    assert node.function._target_ == f"{__name__}.scored"
    assert node.function._partial_ is True
    assert (node.function.high, list(node.function.tags)) == (2.0, ["a"])
    assert "low" not in node.function  # ???: composing requires it


def test_a_group_of_functions_holds_the_call_itself():
    register_truncation("quiet")(plain)  # it also takes two arguments
    node = read_option("algorithm/truncation_handling", "quiet")
    assert node == {"_target_": f"{__name__}.plain", "_partial_": True, "alpha": 1.0}


def test_a_name_belongs_to_one_function_but_a_cell_may_run_again():
    register_reward(plain)
    again = functools.partial(plain).func
    register_reward("plain")(again)
    with pytest.raises(ValueError, match=r"reward=plain is .*plain already, not .*batched"):
        register_reward("plain")(batched)


def in_other_form(old_logp, logp, advantages, mask):
    return -((logp - old_logp).exp() * advantages)[mask].mean(), {}


@pytest.mark.parametrize(
    ("register", "function"), [(register_reward, plain), (register_policy_loss, in_other_form)]
)
def test_a_function_has_one_name_in_a_group(register, function):
    """Its `_target_` could not say which of the two is meant, and the facts of one would go."""
    register("one")(function)
    register("one")(function)
    with pytest.raises(ValueError, match=f"{function.__name__} is {register.group}=one already; w"):
        register("two")(function)


def test_a_cell_that_runs_again_under_another_name_takes_the_first_one_back():
    for name in ("first", "second"):
        cell = type(plain)(plain.__code__, globals(), "cell")
        cell.__qualname__, cell.__kwdefaults__ = "cell", {"alpha": 1.0}
        cell.__module__ = "__main__"
        register_reward(name)(cell)
    named = [name for (group, name), made in REGISTERED.items() if made.__name__ == "cell"]
    assert named == ["second"]


def test_an_option_that_is_shipped_cannot_be_registered():
    register_reward("judge")(plain)
    with pytest.raises(ValueError, match="reward=judge is an option of Tandem's"):
        read_option("reward", "judge")


def test_a_function_inside_another_has_no_name_to_be_chosen_by():
    def inner(output, prompt):
        return 1.0

    with pytest.raises(ValueError, match="top of a module"):
        register_reward(inner)


def test_a_default_that_no_yaml_holds_is_refused():
    def odd(output, prompt, *, model=object()):  # noqa: B008
        return 1.0

    odd.__qualname__ = "odd"
    register_reward(odd)
    with pytest.raises(ValueError, match="odd: YAML cannot represent a default") as caught:
        read_option("reward", "odd")
    assert "\n" not in str(caught.value)


def test_functions_of_an_algorithm_are_chosen_by_name_and_set_by_keyword(trained):
    chosen = ["algorithm/advantage=scaled", "algorithm/loss=by_steps", "~recipe"]
    cfg = compose([trained, *chosen, "algorithm.loss.alpha=0.3", "algorithm.advantage.by=3"])
    check(cfg)
    algorithm = build(cfg.algorithm)
    assert algorithm.loss.keywords == {"alpha": 0.3}
    assert algorithm.advantage.keywords == {"by": 3.0}
    assert algorithm.loss.func is sys.modules["trained_plugin"].by_steps


def test_a_decay_and_a_solver_are_chosen_by_name_and_set_by_keyword(of_flows):
    chosen = [of_flows, "model=tiny_flow", "algorithm=nft", "model/ema=halving"]
    cfg = compose([*chosen, "model.ema.per=2", "dynamics/solver=midpoint"])
    assert build(cfg.model.ema, "model.ema")(2) == 0.75
    assert cfg.dynamics.solver == {
        "_target_": "flow_plugin.midpoint", "_partial_": True, "order": 2,
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"unknown key 'model\.ema\.pre'"):
        compose([*chosen, "model.ema.pre=2"])


def test_keywords_that_only_stars_would_take_are_added_and_others_refused(trained):
    loss = [trained, "algorithm/loss=by_steps", "~recipe"]
    with pytest.raises(ConfigError, match=r"unknown key 'algorithm\.loss\.beta'"):
        compose([*loss, "algorithm.loss.beta=2"])
    assert build(compose([*loss, "+algorithm.loss.beta=2"]).algorithm.loss).keywords["beta"] == 2
    check(compose([*loss, "+algorithm.loss.beta=2"]))
    with pytest.raises(ConfigError, match=r"unknown key 'algorithm\.advantage\.bye'"):
        check(compose([*loss, "algorithm/advantage=scaled", "+algorithm.advantage.bye=2"]))


def test_a_keyword_without_a_default_must_be_given(trained):
    with pytest.raises(ConfigError, match=r"^algorithm\.loss\.floor is not set"):
        check(compose([trained, "algorithm/loss=averaged", "~recipe"]))


def test_both_spellings_of_other_libraries_train(trained, tmp_path):
    tandem.train(trained, *f"{QUICK} {OWN_LOSS} run_dir={tmp_path}/run".split())
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines() if "grad_norm" in line]
    assert [line["my/ratio"] for line in lines] == pytest.approx([1.0, 1.0], abs=1e-2)
    assert all(line["optim/grad_norm"] > 0 for line in lines)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("micro_batch_size=8 max_tokens_per_microbatch=null", "micro_batch_size=8 cuts its 128"),
        ("trainer.devices=2", "trainer.devices=2 shares it out"),
        ("trainer.devices=[0,1]", "trainer.devices=[0, 1] shares it out"),
        (
            "algorithm/importance_sampling=token_tis",
            "algorithm/importance_sampling=token_tis weighs its steps (set "
            "algorithm/importance_sampling=none)",
        ),
        ("algorithm/weights=sequence_sum", "algorithm/weights=sequence_sum need not add up to 1"),
    ],
)
def test_a_loss_that_averages_itself_is_refused_in_parts(trained, line, reason):
    with pytest.raises(ConfigError) as refused:
        check(compose([trained, *OWN_LOSS.split(), *shlex.split(line)]))
    said = str(refused.value)
    assert said.startswith(f"over_tokens averages over an update itself, but {reason}")
    assert "`def over_tokens(batch, *, numbers) -> Tensor`" in said and "\n" not in said


def test_a_loss_that_averages_itself_may_have_a_budget_that_holds_it(trained):
    fits = ["micro_batch_size=128", "max_tokens_per_microbatch=null"]
    check(compose([trained, *OWN_LOSS.split(), *fits]))


def test_a_loss_that_averages_itself_is_refused_on_as_many_gpus_as_are_found(trained, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    cfg = compose([trained, *OWN_LOSS.split(), "trainer=ddp"])
    settings = check(cfg)  # for a machine that is not known yet
    with pytest.raises(
        ConfigError, match=r"is 2 here: over_tokens .* trainer\.devices=2 shares it"
    ):
        check_devices(cfg, settings)


def test_an_update_that_turns_out_to_be_cut_is_refused_before_it_moves_a_weight(trained, tmp_path):
    words = f"{QUICK} {OWN_LOSS} max_tokens_per_microbatch=40 run_dir={tmp_path}/run"
    with pytest.raises(ValueError, match=r"over_tokens averages .* \(max_tokens_per_microbatch, "):
        tandem.train(trained, *words.split())


def wrong_order(logp, old_logp, advantages, mask):
    return logp.mean(), {}


def wrong_star(batch, *numbers):
    return batch.logp


def wrong_number(scores, rollout, gamma):
    return rollout.mask


def wrong_keyword(*, rewards, mask):
    return rewards, rewards


@pytest.mark.parametrize("function", [wrong_order, wrong_star])
def test_another_signature_of_a_loss_is_refused_with_both_that_fit(function):
    with pytest.raises(ValueError, match=function.__name__) as refused:
        register_policy_loss(function)
    said = str(refused.value)
    assert "(batch, *, numbers) -> the loss of each step [B, T]" in said
    assert "(old_logp, logp, advantages, mask, *, numbers) -> (loss, metrics)" in said
    assert "\n" not in said
    assert list_own_options() == {}


@pytest.mark.parametrize("function", [wrong_number, wrong_keyword, wrong_order])
def test_another_signature_of_an_advantage_is_refused_with_both_that_fit(function):
    with pytest.raises(ValueError, match=function.__name__) as refused:
        register_adv_estimator("mine")(function)
    assert "(scores, rollout, *, numbers) -> advantages [B, T] or as (rewards, mask, *" in str(
        refused.value
    )


def test_an_unknown_name_of_the_package_is_an_attribute_error():
    with pytest.raises(AttributeError, match="register_nothing"):
        _ = tandem.register_nothing


@pytest.mark.system
def test_registering_imports_no_torch():
    script = "import sys; from tandem import register_reward; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
