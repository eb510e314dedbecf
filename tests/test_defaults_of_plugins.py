"""Defaults of a function from outside the package become configuration, whatever they are."""

from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf
from written_plugin import metrics_of

from tandem.config import ConfigError, build, check, compose
from tandem.config.checks import make_case
from tandem.launch.run import recorded_text
from tandem.legality.units import warning
from tandem.registry.nodes import as_text

pytestmark = pytest.mark.usefixtures("unregistered")

FUNCTIONS = """
from functools import partial

from tandem import register_adv_estimator
from tandem.advantages.group import Scale, centre, unbiased_std
from tandem.advantages.preference import win_rate

def raised(x, *, power: float = 2.0):
    return x ** power

@register_adv_estimator(compares="group")
def own_win_rate(scores, rollout, *, scale: Scale | None = unbiased_std, eps: float = 1e-6):
    return win_rate(scores, rollout, scale=scale, eps=eps)

@register_adv_estimator(compares="group")
def shaped(scores, rollout, *, shape=raised, wide=partial(raised, power=3.0)):
    return wide(shape(centre(scores, rollout.group)))[:, None] * rollout.mask
"""
NAMELESS = """
from tandem import register_adv_estimator

@register_adv_estimator
def nameless(scores, rollout, *, shape=lambda x: x):
    return shape(scores.total)[:, None] * rollout.mask
"""
WORDS = ["plugins=[wrong]", "~recipe"]


def test_a_copy_of_an_advantage_with_a_function_as_a_default_is_the_same(plugin, tmp_path):
    words = plugin(FUNCTIONS)
    own, built_in = (
        metrics_of(words, f"algorithm/advantage={name}", f"run_dir={tmp_path}/{name}")
        for name in ("own_win_rate", "win_rate")
    )
    assert own == built_in
    check(compose([*WORDS, "algorithm/advantage=own_win_rate", "algorithm.advantage.scale=null"]))


def test_numbers_of_a_function_that_is_a_default_can_be_set(plugin):
    plugin(FUNCTIONS)
    words = [*WORDS, "algorithm/advantage=shaped", "algorithm.advantage.wide.power=1.5"]
    shaped = build(compose(words).algorithm.advantage)
    assert shaped.keywords["wide"](4.0) == 8.0 and shaped.keywords["shape"](4.0) == 16.0


def test_a_function_without_a_name_is_no_default(plugin):
    plugin(NAMELESS)
    with pytest.raises(ConfigError, match=r"nameless: shape: its default <lambda> has no name in"):
        check(compose([*WORDS, "algorithm/advantage=nameless"]))


PAIR = """
from tandem import register_policy_loss

@register_policy_loss(reads={"old_logp"}, units={"band": "clip", "over": "ratio"})
def banded(batch, *, band: tuple[float, float] = (0.2, 0.28), over: list[float] = [1.5]):
    ratio = (batch.logp - batch.old_logp).exp()
    return -ratio.clamp(1 - band[0], 1 + band[1]).clamp(max=over[0]) * batch.advantages

@register_policy_loss(reads={"old_logp"})
def silent(batch, *, band: tuple[float, float] = (0.2, 0.28)):
    return -(batch.logp - batch.old_logp).exp() * batch.advantages
"""


def test_the_numbers_of_a_pair_come_in_the_units_of_the_dynamics(plugin):
    plugin(PAIR)
    words = [*WORDS, "model=tiny_flow", "algorithm=grpo", "algorithm/loss=banded"]
    loss, scale = (compose(words)[group] for group in ("algorithm", "dynamics"))
    own, scale = build(loss.loss).keywords, scale.clip_scale
    assert own["band"] == pytest.approx((0.2 * scale, 0.28 * scale))
    assert own["over"] == pytest.approx([1 + 0.5 * scale])
    assert scale < 0.1
    tokens = build(compose([*WORDS, "algorithm/loss=banded"]).algorithm.loss)
    assert tokens.keywords == {"band": (0.2, 0.28), "over": [1.5]}


def test_a_pair_without_a_unit_is_named_where_a_flow_is_trained(plugin):
    plugin(PAIR)
    case = make_case(
        compose([*WORDS, "model=tiny_flow", "algorithm=grpo", "algorithm/loss=silent"])
    )
    assert "algorithm.loss.band=[0.2, 0.28] of silent has no" in warning(case.algorithm, case.plan)
    with pytest.raises(ConfigError, match=r"^algorithm\.loss\.band=\[0\.2, 0\.28\] of silent has"):
        check(compose([*WORDS, "model=tiny_chain", "algorithm=grpo", "algorithm/loss=silent"]))


TEXTS = r"""
from pathlib import Path

from tandem import register_reward

@register_reward
def matched(output, prompt, *, pattern: str = r"\${(\w+)}", names=("${seed}",), of="${a"): ...

@register_reward
def listed(output, prompt, *, words: Path = Path("words.txt"), bare=Path("${a}"),
           more: tuple[Path, ...] = (Path("a"),)): ...
"""


def test_a_text_that_is_a_default_is_no_interpolation(plugin):
    plugin(TEXTS)
    cfg = compose([*WORDS, "reward=matched", "run_dir=x"])
    again = OmegaConf.create(as_text(yaml.safe_load(recorded_text(cfg))))
    for reward in (cfg.reward, again.reward):
        given = build(reward)["matched"].function.keywords
        assert given == {"pattern": r"\${(\w+)}", "names": ("${seed}",), "of": "${a"}


def test_a_default_may_be_a_path(plugin):
    plugin(TEXTS)
    cfg = compose([*WORDS, "reward=listed", "run_dir=x"])
    check(cfg)
    again = OmegaConf.create(as_text(yaml.safe_load(recorded_text(cfg))))
    for reward in (cfg.reward, again.reward):
        given = build(reward)["listed"].function.keywords
        assert given == {"words": Path("words.txt"), "bare": Path("${a}"), "more": (Path("a"),)}
    other = compose([*WORDS, "reward=listed", "reward.listed.function.bare=b"])
    assert build(other.reward)["listed"].function.keywords["bare"] == Path("b")
