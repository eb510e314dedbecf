"""Replaced parts, and what happens to the numbers of the old ones."""

import functools
import re

import pytest
from gate import each

from tandem.config import ConfigError, check, compose
from tandem.config.composition import conf_folder, make_loader
from tandem.config.overrides import list_options
from tandem.config.swaps import Numbers, Swap, fit_numbers

PPO = {"_target_": "ppo", "clip_low": 0.2, "clip_high": 0.2, "coef": 0.0, "ratio_max": None}
CISPO = {"_target_": "cispo", "ratio_max": 5.0, "coef": 0.0}


def what_stays(said, before, after):
    numbers = Numbers()
    swap = Swap("algorithm/loss", "algorithm.loss", before, after)
    content = fit_numbers({"algorithm": {"loss": said}, "seed": 1}, swap, numbers)
    assert content["seed"] == 1
    return content["algorithm"]["loss"], numbers


def test_numbers_of_another_function_are_dropped_and_named():
    stays, numbers = what_stays({"clip_low": 0.3, "clip_high": 0.4}, PPO, CISPO)
    assert stays == {}
    assert numbers.dropped == {"algorithm.loss.clip_low": 0.3, "algorithm.loss.clip_high": 0.4}


def test_a_number_of_the_same_function_stays_and_is_not_named():
    stays, numbers = what_stays({"clip_low": 0.3}, PPO, {**PPO, "clip_high": 0.1})
    assert (stays, numbers) == ({"clip_low": 0.3}, Numbers())


def test_a_number_that_an_option_of_the_same_function_changes_is_the_one_that_counts():
    mine = {**PPO, "clip_low": 0.1, "floor": 0.0}
    stays, numbers = what_stays({"clip_low": 0.3, "coef": 1.0}, PPO, mine)
    assert (stays, numbers.dropped) == ({"coef": 1.0}, {"algorithm.loss.clip_low": 0.3})
    # A number that the replaced option left to a default is changed too.
    stays, numbers = what_stays({"every": 30}, {"_target_": "f"}, {"_target_": "f", "every": 10})
    assert (stays, numbers.dropped) == ({}, {"algorithm.loss.every": 30})
    # With another part inside, it is another part that was chosen, not a number.
    stays, _ = what_stays({"clip_low": 0.3}, PPO, {**mine, "inner": {"_target_": "hinge"}})
    assert stays == {"clip_low": 0.3}


def test_a_number_with_the_same_default_in_both_means_the_same_and_is_kept():
    """coef is 0 in both; ratio_max is a cap of bad steps in one and of all steps in the other."""
    stays, numbers = what_stays({"coef": 0.1, "ratio_max": 3.0}, PPO, CISPO)
    assert (stays, numbers.kept) == ({"coef": 0.1}, {"algorithm.loss.coef": 0.1})
    assert numbers.dropped == {"algorithm.loss.ratio_max": 3.0}


def test_a_part_inside_the_same_part_is_judged_by_its_own_function():
    before, after = ({"_target_": "kl", "coef": 0.0, "loss": inner} for inner in (PPO, CISPO))
    stays, numbers = what_stays({"coef": 0.1, "loss": {"clip_low": 0.3}}, before, after)
    assert stays == {"coef": 0.1, "loss": {}}
    assert numbers.dropped == {"algorithm.loss.loss.clip_low": 0.3}
    assert numbers.kept == {"algorithm.loss.coef": 0.1}  # it was set for a penalty with PPO


def test_a_number_around_a_part_that_stays_is_not_named():
    losses = PPO, {**PPO, "clip_low": 0.1}
    before, after = ({"_target_": "kl", "coef": 0.0, "loss": loss} for loss in losses)
    assert what_stays({"coef": 0.1}, before, after) == ({"coef": 0.1}, Numbers())


def test_a_function_that_a_recipe_put_there_itself_is_replaced_too():
    said = {"_target_": "gspo", "clip_low": 0.3, "ratio_max": 5.0}
    stays, numbers = what_stays(said, {**PPO, "ratio_max": 5.0}, CISPO)
    assert stays == {}
    assert {*numbers.dropped} == {"algorithm.loss.clip_low", "algorithm.loss.ratio_max"}


def test_what_a_plain_mapping_holds_stays():
    assert what_stays({"a": {"b": 1}}, {"a": {"b": 0}}, {"a": {"b": 0}})[0] == {"a": {"b": 1}}


def test_the_null_of_a_part_that_is_left_out_stays_and_a_part_in_its_place_does_not():
    assert what_stays(None, PPO, None)[0] is None
    content = {"algorithm": {"loss": PPO}}
    assert fit_numbers(content, Swap("x", "algorithm.loss", PPO, None), Numbers()) == {
        "algorithm": {}
    }


FLOW = "model=tiny_flow"
LINES = {  # a swap -> a number that is dropped, and one that is kept
    "algorithm=grpo algorithm/loss=cispo": ("algorithm.loss.clip_high=0.28", None),
    "algorithm=dapo algorithm/loss=sapo": ("algorithm.loss.clip_low", None),
    "algorithm=ppo algorithm/kl=k3": (None, "algorithm.kl.coef=0.0"),
    "algorithm=grpo algorithm/kl=k3": (None, "algorithm.kl.coef=0.0"),
    f"{FLOW} algorithm=flow_grpo algorithm/kl=gaussian": (None, "algorithm.kl.coef=0.03"),
    f"{FLOW} algorithm=flow_grpo algorithm/kl=gaussian algorithm.kl.coef=0.1": (None, None),
    f"{FLOW} algorithm=flow_grpo dynamics/logp=gaussian": ("dynamics.step_clip_scale=0.0025", None),
    f"{FLOW} algorithm=flow_grpo dynamics/logp=unscaled": (None, None),
    "optimizer=sgd": ("optimizer.lr=0.0003", None),
    f"{FLOW} algorithm=mix_grpo dynamics/stochastic=random_steps": (
        "dynamics.stochastic.length=7",
        None,
    ),
    f"{FLOW} algorithm=crd algorithm/ema@algorithm.ema.sampling=linear": (
        "algorithm.ema.sampling.decay.slope=0.0075",
        None,
    ),
    "model=flux1_dev algorithm=flow_grpo dynamics=cps data.path=x": (
        "dynamics.kernel.noise_level=0.9",
        None,
    ),
    f"{FLOW} algorithm=gardo algorithm/kl=in_reward": (
        "algorithm.kl.gate.share=0.1",
        "algorithm.kl.coef=0.01",
    ),
    f"{FLOW} reward=[colour_share,jpeg_compressibility]": (
        "reward.crisp_rendering.function.close=0.03",
        None,
    ),
    "algorithm=grpo seed=1": (None, None),
}


@pytest.mark.parametrize(("line", "told"), LINES.items(), ids=LINES)
def test_a_swap_composes_and_says_what_it_left_out(line, told):
    cfg = compose(line.split())
    check(cfg)
    for number, named in zip(told, (cfg.replaced.dropped, cfg.replaced.kept), strict=True):
        assert number in named if number else not named


def test_a_part_that_is_asked_for_by_name_is_there_though_the_recipe_has_another():
    recipe = ["model=tiny_flow", "algorithm=grpo"]
    logp = {  # overrides -> the function; the preset's own is gaussian
        (): "unscaled_logp",
        ("dynamics/logp=gaussian",): "gaussian_logp",
        ("dynamics=flow_sde",): "unscaled_logp",  # does not set it
    }
    for typed, function in logp.items():
        assert compose([*recipe, *typed]).dynamics.logp._target_.endswith(f".{function}")
    plain, typed = (
        compose([*recipe, "dynamics/logp=gaussian", word]).dynamics.clip_scale
        for word in ("~recipe", "dynamics.step_clip_scale=0.01")
    )
    assert compose([*recipe, "dynamics/logp=gaussian"]).dynamics.clip_scale == plain
    assert typed == 0.01
    other = compose([*recipe, "dynamics=dance_sde"])  # around the same likelihood
    assert other.dynamics.logp._target_.endswith(".unscaled_logp")
    assert "dynamics.logp=unscaled_logp" in other.replaced.kept


def test_a_kl_that_is_chosen_and_costs_nothing_is_said_to_be_off():
    line = ["algorithm=dapo", "algorithm/kl=k3"]
    assert compose(line).replaced.off == ["algorithm/kl=k3, since algorithm.kl.coef=0"]
    assert not compose([*line, "algorithm.kl.coef=0.01"]).replaced.off
    assert not compose(["algorithm=dapo"]).replaced.off


def test_a_pair_without_a_recipe_is_named_if_the_model_has_some():
    line = ["model=tiny_lm", "algorithm=m2po"]
    (told,) = compose(line).replaced.untuned
    assert told.startswith("no recipe for tiny_lm/m2po; recipe=tiny_lm/NAME takes")
    for known in (["recipe=tiny_lm/cispo"], ["~recipe"], ["algorithm=cispo"], ["model=hf"]):
        assert not compose([*line, *known]).replaced.untuned


def test_what_is_typed_for_a_part_that_has_no_such_number_is_an_error():
    with pytest.raises(ConfigError, match=r"^unknown key 'algorithm\.loss\.clip_low': "):
        compose(["algorithm=grpo", "algorithm/loss=cispo", "algorithm.loss.clip_low=0.1"])
    own = ["model=tiny_flow", "algorithm=gardo", "algorithm/kl=in_reward"]
    with pytest.raises(ConfigError, match=r"^unknown key 'algorithm\.kl\.gate': "):
        check(compose([*own, "algorithm/kl/gate=most_uncertain"]))


@functools.cache
def option_groups() -> dict[str, list[str]]:
    found = list_options(make_loader())
    parts = (
        "loss",
        "advantage",
        "weights",
        "kl",
        "importance_sampling",
        "sampling_strategy",
        "old_logprobs",
        "truncation_handling",
    )
    groups = [*(f"algorithm/{part}" for part in parts), "dynamics/stochastic", "dynamics/schedule"]
    return {group: found[group] for group in groups}


def beside(algorithm: str) -> list[str]:
    """A model that fits the preset, and the data that it requires."""
    text = (conf_folder() / "algorithm" / f"{algorithm}.yaml").read_text()
    of_flows = re.search(r"dynamics|denoising|advantage: \w*flow_grpo|loss: (flow|grpo_g)", text)
    given = re.search("override teachers: [tv]", text)
    teacher = ["algorithm.teachers.folders={others:x}"] if given else []
    pairs = "preference_pairs" in text or "mismatched" in text
    return [*([FLOW] if of_flows else []), *(["data=sort_pairs"] if pairs else []), *teacher]


# A refusal that names a key that was not typed, or a part that was not chosen.
NOT_MATHEMATICS = re.compile(r"unknown key|is missing|expected .* got|[Cc]ould not")


def swaps(preset: str, start: int, step: int) -> list[str]:
    lines = [f"{group}={name}" for group, names in option_groups().items() for name in names]
    flows = FLOW in beside(preset)
    return [line for line in lines if flows or line.startswith("algorithm/")][start::step]


def refusals_of(preset: str, lines: list[str]) -> list[str]:
    found = []
    for line in lines:
        words = [f"algorithm={preset}", *beside(preset), line]
        try:
            check(compose(words))
        except ConfigError as error:
            if NOT_MATHEMATICS.search(str(error)):
                found.append(f"{' '.join(words)}: {error}")
    return found


PRESETS = sorted(path.stem for path in (conf_folder() / "algorithm").glob("[!_]*.yaml"))


@pytest.mark.parametrize("place", each(6, range(len(PRESETS))))
def test_some_swaps_of_each_preset_run_or_are_refused_for_a_reason_of_mathematics(place):
    """Each option is tried with at least one preset, half of them in the gate; the next test tries
    all."""
    assert not refusals_of(PRESETS[place], swaps(PRESETS[place], place, len(PRESETS)))


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_all_swaps_run_or_are_refused_for_a_reason_of_mathematics(preset):
    assert not refusals_of(preset, swaps(preset, 0, 1))


def test_a_loss_without_a_preset_is_an_algorithm_over_the_parts_that_most_have():
    cfg = compose(["algorithm=opsm"])
    check(cfg)
    assert cfg.algorithm.advantage["_target_"].endswith("group_relative")
    assert cfg.algorithm.weights["_target_"].endswith("sequence_mean")
    assert cfg.algorithm.loss == compose(["algorithm/loss=opsm"]).algorithm.loss
    assert (cfg.choices.algorithm, cfg.choices.recipe) == ("opsm", None)


MINE = """\
from tandem import register_policy_loss

@register_policy_loss
def my_loss(batch, *, clip_low: float, width: float = 0.5):
    return -batch.logp
"""


def test_a_registered_loss_is_an_algorithm_with_ppos_numbers_where_it_has_none(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine_alone.py").write_text(MINE)
    cfg = compose(["plugins=[mine_alone]", "algorithm=my_loss", "algorithm.loss.width=0.25"])
    check(cfg)
    assert (cfg.algorithm.loss.clip_low, cfg.algorithm.loss.width) == (0.2, 0.25)
    with pytest.raises(ConfigError, match=r"unknown option of algorithm 'my_los': did you mean"):
        compose(["plugins=[mine_alone]", "algorithm=my_los"])
