"""A kernel from outside the package that adds no noise is used as `ode` is."""

import pytest
from written_plugin import metrics_of

from tandem.config import ConfigError, check, compose

pytestmark = pytest.mark.usefixtures("unregistered")

OWN = """
import torch
from tandem import register_dynamics
from tandem.dynamics.kernels import linear_step

@register_dynamics(noiseless=True)
def damped(x, velocity, sigma, next_sigma, *, share: float = 1.0):
    dt = next_sigma.double() - sigma.double()
    return linear_step(x, velocity, torch.ones_like(dt), share * dt, torch.zeros_like(dt))

@register_dynamics(noiseless=True)
def noisy(x, velocity, sigma, next_sigma):
    dt = next_sigma.double() - sigma.double()
    return linear_step(x, velocity, torch.ones_like(dt), dt, torch.ones_like(dt))

@register_dynamics(noiseless=True)
def flat(x, velocity, sigma, next_sigma):
    return damped(x.flatten(1), velocity.flatten(1), sigma, next_sigma)
"""
WORDS = ["plugins=[wrong]", "model=tiny_flow", "algorithm=nft", "~recipe"]


def test_the_same_step_gives_the_same_run_and_another_one_another(plugin, tmp_path):
    given = plugin(OWN, reward="reward=colour_share model=tiny_flow algorithm=nft")
    given = [word for word in given if not word.startswith("data.")]
    runs = {
        words: metrics_of(given, "rollout.steps=4", *words.split(), f"run_dir={tmp_path}/{number}")
        for number, words in enumerate(
            ["dynamics=ode", "dynamics=damped", "dynamics=damped dynamics.kernel.share=0.5"]
        )
    }
    ode, same, damped = runs.values()
    assert ode == same
    assert damped["reward/mean"] != ode["reward/mean"]


@pytest.mark.parametrize("algorithm", ["dmd2", "awm", "tdm"])
def test_algorithms_on_finished_pictures_take_it(plugin, algorithm):
    plugin(OWN)
    check(compose([*WORDS, f"algorithm={algorithm}", "dynamics=damped"]))


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("dynamics=noisy", "returned a std of 1, and declares noiseless=True"),
        ("dynamics=flat", "returned a mean [10, 8] for x [10, 2, 2, 2]; return [10, 2, 2, 2]"),
        (
            "dynamics=damped dynamics/solver=unipc",
            "solver=unipc takes no steps of dynamics=damped; set it to null",
        ),
        ("dynamics=damped algorithm=flow_grpo", "dynamics=damped takes none; set dynamics=flow_"),
    ],
)
def test_it_is_tried_like_one_with_noise(plugin, words, fault):
    plugin(OWN)
    with pytest.raises(ConfigError) as refused:
        check(compose([*WORDS, *words.split()]))
    assert fault in str(refused.value) and "\n" not in str(refused.value)
