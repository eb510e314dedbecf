"""Defaults of a function from outside the package become configuration, whatever they are."""

import pytest

import tandem
from tandem.config import ConfigError, build, check, compose

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


def metrics_of(words, *more):
    found = tandem.train(*words, "iterations=1", *more).metrics
    return {name: x for name, x in found.items() if not name.startswith(("time/", "perf/"))}


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
