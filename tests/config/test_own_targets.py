"""Of Tandem's own code a configuration may name what its options name, and nothing else."""

import importlib
import pkgutil
import subprocess
import sys

import pytest
import yaml

import tandem
from tandem.config import ConfigError, build, compose, trust
from tandem.config.own_targets import FOREIGN, NAMED, conf_folder, own_targets
from tandem.config.plugins import load_plugins
from tandem.config.targets import HOMES, resolve
from tandem.contracts import REGISTERED, place
from tandem.losses.policy import ppo
from tandem.registry import declared
from tandem.reward_server import serve

PUBLISH = "tandem.policies.engines.weight_store.publish"
SERVED = "tandem.reward_server.serve.build_rewards"
DANGEROUS = [
    PUBLISH,
    SERVED,
    "tandem.policies.engines.weight_store.sweep",
    "tandem.data.records.write_quarantine",
    "tandem.policies.flow.lora.save_lora",
    "tandem.rewards.workers.Worker",
]


def targets_in(node):
    """An oracle that parses: every `_target_` of a tree."""
    if isinstance(node, dict):
        own = [node["_target_"]] if "_target_" in node else []
        return own + [x for value in node.values() for x in targets_in(value)]
    return [x for value in node for x in targets_in(value)] if isinstance(node, list) else []


def of_options():
    files = [yaml.safe_load(p.read_text()) for p in sorted(conf_folder().rglob("*.yaml"))]
    nodes = [option.node for option in declared.options().values()]
    return sorted({x for tree in [*files, *nodes] for x in targets_in(tree)})


def test_every_target_of_an_option_is_admitted():
    own = [target for target in of_options() if target.startswith("tandem.")]
    assert len(own) > 150
    for target in own:
        assert callable(resolve(target, "here"))


def test_no_recipe_is_needed_to_admit_a_part():
    for folder in FOREIGN:
        for path in (conf_folder() / folder).rglob("*.yaml"):
            assert set(NAMED.findall(path.read_text())) <= own_targets()


def public():
    for found in pkgutil.walk_packages(tandem.__path__, "tandem."):
        if any(f"{found.name}.".startswith(f"{home}.") for home in HOMES):
            module = importlib.import_module(found.name)
            yield from (
                f"{found.name}.{name}"
                for name, value in vars(module).items()
                if name[0] != "_" and getattr(value, "__module__", None) == found.name
            )


def test_all_else_that_lies_beside_parts_is_refused():
    parts = {*of_options(), *map(place, REGISTERED.values())}
    beside = [path for path in public() if path not in parts]
    assert len(beside) > 400 and {PUBLISH, "tandem.data.records.write_quarantine"} <= {*beside}
    for path in beside:
        with pytest.raises(ConfigError, match=r"^here: tandem\.") as refused:
            resolve(path, "here")
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("target", DANGEROUS)
def test_what_writes_or_composes_is_no_part(target):
    said = f"logger.mine: {target} is not among the targets that a configuration may name"
    with pytest.raises(ConfigError) as refused:
        resolve(target, "logger.mine")
    assert str(refused.value) == said


def test_a_recipe_cannot_delete_a_folder(tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    call = {"_target_": PUBLISH, "arriving": str(victim), "place": str(tmp_path / "place")}
    with pytest.raises(ConfigError, match=r"^logger\.mine: .* is not among the targets"):
        build({"mine": call}, "logger")
    assert victim.is_dir()


def test_a_recipe_cannot_compose_with_a_plugin(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loud.py").write_text("import os\nos.mkdir('canary')\n")
    call = {"_target_": SERVED, "overrides": ["plugins=[loud]", "reward=exact_match"]}
    with pytest.raises(ConfigError, match=r"^logger\.mine: .* is not among the targets"):
        build({"mine": call}, "logger")
    assert not (tmp_path / "canary").exists()


def test_what_a_server_is_built_of_says_nothing_for_the_user(monkeypatch):
    monkeypatch.setattr(trust, "SAID_HOSTS", set())
    url = "reward.http.function.url=https://evil.example"
    cfg = compose(["reward=http", url], recorded=True)
    serve.build_rewards(cfg.reward)
    assert not trust.SAID_HOSTS
    serve.compose_rewards(["reward=http", url])
    assert "https://evil.example" in trust.SAID_HOSTS


def test_a_borrowed_function_is_no_plugins_own(tmp_path, monkeypatch):
    from tandem.config.plugins import ADMITTED

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "lender.py").write_text(f"from {PUBLISH.rpartition('.')[0]} import publish\n")
    monkeypatch.setattr("tandem.config.targets.ADMITTED", {*ADMITTED, "lender"})
    with pytest.raises(ConfigError, match=r"lender\.publish is not among the targets"):
        resolve("lender.publish", "here")
    sys.modules.pop("lender")


ADAPTED = """
import functools
from tandem import register_adv_estimator, register_policy_loss, register_reward
from tandem.losses.policy import ppo

@register_policy_loss("own_ppo")
@functools.wraps(ppo)
def own_ppo(batch, **numbers):
    return 2 * ppo(batch, **numbers)

def both(rewards, mask, *, completions=None):
    return rewards, rewards

made = register_reward(both), register_adv_estimator(both)
"""


@pytest.fixture
def adapted(tmp_path, monkeypatch, unregistered):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "adapting.py").write_text(ADAPTED)
    load_plugins(["adapting"])
    yield sys.modules["adapting"]
    sys.modules.pop("adapting")


def test_a_plugin_that_wraps_a_built_in_function_does_not_replace_it(adapted):
    path = "tandem.losses.policy.ppo"
    assert resolve(path, "algorithm.loss") is ppo
    chosen = compose(["algorithm/loss=own_ppo", "plugins=[adapting]"]).algorithm.loss
    assert resolve(chosen._target_, "algorithm.loss") is adapted.own_ppo


def test_a_function_adapted_for_two_groups_is_the_one_of_its_key(adapted):
    reward, advantage = adapted.made
    assert resolve("adapting.both", "reward.both.function") is reward
    assert resolve("adapting.both", "algorithm.advantage") is advantage
    with pytest.raises(ConfigError, match=r"^--help: .* in reward and in algorithm/advantage; "):
        resolve("adapting.both", "--help")


def test_the_list_is_made_without_torch():
    code = "import sys; from tandem.config.own_targets import own_targets; own_targets(); "
    command = [sys.executable, "-c", code + "print('torch' in sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
