"""A decorated function is an option of its group, with its keyword defaults as configuration."""

import functools
import subprocess
import sys

import pytest
from hydra.core.config_store import ConfigStore

from tandem import registry
from tandem.config import ConfigError, build, compose
from tandem.registry import component_node, register, register_reward
from tandem.rewards import Rewards, batched
from tandem.types import Prompt

PLUGIN = """
from tandem.registry import register_reward
from tandem.rewards import batched

@register_reward
def shouting(output, prompt, *, alpha: float = 1.0, words: list[str] = ["yes"]):
    return alpha * (output in words)

@register_reward("loud")
@batched
def many(outputs, prompts, *, scale: float):
    return [scale * output.isupper() for output in outputs]
"""


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(registry, "REGISTERED", {})


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    (tmp_path / "shouting_plugin.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "plugins=[shouting_plugin]"
    sys.modules.pop("shouting_plugin", None)


def stored(group, name):
    return ConfigStore.instance().load(f"{group}/{name}.yaml").node


def plain(output, prompt, *, alpha: float = 1.0):
    return alpha


def test_a_plugin_s_reward_is_chosen_by_name_and_set_by_keyword(plugin):
    overrides = [plugin, "reward=[shouting,loud]", "reward.shouting.function.alpha=2"]
    node = compose([*overrides, "reward.loud.function.scale=0.5", "reward.loud.weight=4"]).reward
    rewards = Rewards(build(node, "reward"))
    prompts = [Prompt(id=i, source="t", text="?") for i in range(2)]
    scores = rewards(["yes", "NO"], prompts)
    assert scores.parts["shouting"].tolist() == [2.0, 0.0]
    assert scores.parts["loud"].tolist() == [0.0, 0.5]
    assert scores.total.tolist() == [2.0, 2.0]


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
    node = stored("reward", "scored").scored
    assert (node.weight, node.batch_size, node.timeout) == (1.0, None, None)
    assert node.function._target_ == f"{__name__}.scored"
    assert node.function._partial_ is True
    assert (node.function.high, list(node.function.tags)) == (2.0, ["a"])
    assert "low" not in node.function  # ???: composing asks for it


def test_a_group_of_functions_holds_the_call_itself():
    register("algorithm/loss", component_node)("quiet")(plain)
    node = stored("algorithm/loss", "quiet")
    assert node == {"_target_": f"{__name__}.plain", "_partial_": True, "alpha": 1.0}


def test_a_name_belongs_to_one_function_but_a_cell_may_run_again():
    register_reward(plain)
    again = functools.partial(plain).func
    register_reward("plain")(again)
    with pytest.raises(ValueError, match=r"reward=plain is .*plain already, not .*batched"):
        register_reward("plain")(batched)


def test_an_option_that_is_shipped_cannot_be_registered():
    with pytest.raises(ValueError, match="reward=length is an option of Tandem's"):
        register_reward("length")(plain)


def test_a_function_inside_another_has_no_name_to_be_chosen_by():
    def inner(output, prompt):
        return 1.0

    with pytest.raises(ValueError, match="top of a module"):
        register_reward(inner)


def test_a_default_that_no_yaml_holds_is_refused():
    def odd(output, prompt, *, model=object()):  # noqa: B008
        return 1.0

    odd.__qualname__ = "odd"
    with pytest.raises(ValueError, match="odd: no YAML can hold a default") as caught:
        register_reward(odd)
    assert "\n" not in str(caught.value)
    assert registry.REGISTERED == {}


@pytest.mark.system
def test_registering_imports_no_torch():
    script = "import sys, tandem.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
