"""A preset without a recipe: the numbers of the model for its objective, below its own."""

import pytest
from gate import each

from tandem.config import check, compose
from tandem.config.own_targets import conf_folder

FLOW = ("model=tiny_flow", "plugins=[experiments.my_idea]", "algorithm=my_idea")
SHARED = "tiny_flow/_policy_gradient"
OWN = {path.stem for path in (conf_folder() / "recipe" / "tiny_flow").glob("*.yaml")}
RANDOM = [path.stem for path in sorted((conf_folder() / "algorithm").glob("*.yaml"))
          if path.stem in OWN and "objective:" not in path.read_text()]  # fmt: skip
NEEDS_DENSITY = "  - override /dynamics/logp@_global_.dynamics.logp: gaussian\n"


@pytest.fixture
def preset(tmp_path, monkeypatch):
    """Writes the preset `mine` of a plugin and returns the words that choose it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    plugin = tmp_path / f"plugin_of_{tmp_path.name}"
    (plugin / "conf" / "algorithm").mkdir(parents=True)
    (plugin / "__init__.py").write_text("")

    def write(text):
        (plugin / "conf" / "algorithm" / "mine.yaml").write_text(f"# A preset\n{text}")
        return (f"plugins=[{plugin.name}]", "algorithm=mine", "model=tiny_flow")

    return write


def numbers(cfg):
    return (cfg.algorithm.kl.coef, cfg.schedule.warmup, cfg.dynamics.step_clip_scale)


def test_the_models_numbers_apply_and_the_banner_says_so():
    cfg = compose(FLOW)
    check(cfg)
    assert cfg.choices.recipe == SHARED
    assert numbers(cfg) == (0.003, 5, 0.0025)
    assert cfg.replaced.untuned == [
        f"recipe={SHARED}, as algorithm=my_idea has none of its own; its own numbers win"
    ]


def test_the_command_line_wins_and_can_leave_them_out():
    typed = compose([*FLOW, "algorithm.kl.coef=0.5", "schedule.warmup=1"])
    assert numbers(typed) == (0.5, 1, 0.0025)
    chosen = compose([*FLOW, "dynamics/logp=gaussian"])
    assert chosen.dynamics.logp._target_.endswith(".gaussian_logp")
    assert chosen.dynamics.step_clip_scale != 0.0025
    assert compose([*FLOW, "~recipe"]).choices.recipe is None
    assert compose([*FLOW, "recipe=tiny_flow/cispo"]).choices.recipe == "tiny_flow/cispo"


def test_what_a_preset_states_wins_also_if_it_extends_another(preset):
    own = (conf_folder() / "algorithm" / "flow_grpo.yaml").read_text()
    for text in (own, "defaults:\n  - flow_grpo\n  - _self_\n"):
        cfg = compose(preset(text))
        check(cfg)
        assert cfg.choices.recipe == SHARED
        assert numbers(cfg) == (0.04, 5, 0.0025)
        assert (cfg.group_size, cfg.num_minibatches, cfg.iterations) == (24, 2, 30)


def test_a_function_that_a_preset_chooses_stays_with_its_numbers(preset):
    own = (conf_folder() / "algorithm" / "grpo_guard.yaml").read_text()
    cfg = compose(preset(own.replace("  - _self_\n", f"{NEEDS_DENSITY}  - _self_\n")))
    check(cfg)
    assert cfg.dynamics.logp._target_.endswith(".gaussian_logp")
    assert cfg.dynamics.step_clip_scale != 0.0025
    assert cfg.schedule.warmup == 5


@pytest.mark.parametrize("name", each(4, [one for one in RANDOM if one != "grpo_guard"]))
def test_a_copy_of_every_preset_on_random_steps_is_legal(name, preset):
    cfg = compose(preset((conf_folder() / "algorithm" / f"{name}.yaml").read_text()))
    check(cfg)
    assert cfg.choices.recipe == SHARED


def test_another_objective_another_model_and_a_recipe_of_its_own_take_none(preset):
    denoising = (conf_folder() / "algorithm" / "nft.yaml").read_text()
    assert compose(preset(denoising)).choices.recipe is None
    assert compose([*FLOW, "model=tiny_lm"]).choices.recipe is None
    assert compose(["model=tiny_flow", "algorithm=cispo"]).choices.recipe == "tiny_flow/cispo"
