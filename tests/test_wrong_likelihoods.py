"""Likelihoods from outside the package are tried before anything is loaded."""

from functools import partial

import pytest
import torch

from tandem.config import ConfigError, check, compose
from tandem.legality.masked_states import try_states
from tandem.policies.masked.states import coupled_tokens, elbo, merged_path, one_step, path

pytestmark = pytest.mark.usefixtures("unregistered")

OF_ANSWERS = """
from dataclasses import replace

import torch
from tandem import rng
from tandem.contracts import register_answer_likelihood
from tandem.policies.masked.records import States
from tandem.policies.masked.states import make_states

def states(rows, hidden, **changed):
    found = make_states(rows, hidden, hidden / 0.5, trailing="hidden", p_mask_prompt=0.1)
    new = {name: change(getattr(found, name)) for name, change in changed.items()}
    return replace(found, **new)

def draw(rows):
    noise = rng.uniform(rng.key(rows.key, "masks"), (1, rows.free.shape[1]))
    return rows.free[:, None] & (noise < 0.5)

@register_answer_likelihood
def right(rows):
    return states(rows, draw(rows))

@register_answer_likelihood
def pair(rows):
    return draw(rows), draw(rows).double()

@register_answer_likelihood
def anew(rows):
    free = rows.free[:, None]
    return states(rows, free & (torch.rand(free.shape) < 0.5))

@register_answer_likelihood
def beside(rows):
    position = torch.arange(rows.free.shape[1])
    return states(rows, rows.free[:, None] & ((position + len(rows.free)) % 2 == 0))

@register_answer_likelihood
def shared(rows):
    return replace(right(rows), prompt=rows.prompt)

@register_answer_likelihood
def whole(rows):
    return states(rows, draw(rows), weight=lambda weight: weight.long())

@register_answer_likelihood
def uncertain(rows):
    return replace(right(rows), hidden=right(rows).hidden.double())

@register_answer_likelihood
def outside(rows):
    return states(rows, draw(rows), row=lambda row: row + len(rows.free))

@register_answer_likelihood
def averaged(rows):
    share = draw(rows).sum(-1, keepdim=True) / rows.free.sum(1)[:, None, None]
    return make_states(rows, draw(rows), draw(rows) / share, trailing="hidden", p_mask_prompt=0.0)

@register_answer_likelihood
def unmasking(rows):
    rows.free[:] = True
    return states(rows, draw(rows))

@register_answer_likelihood
def failing(rows):
    return states(rows, rows.absent)
"""
WRONG_STATES = {
    "pair": "returned a tuple; return States, of tandem.policies.masked.records",
    "anew": "gives rows other values when called again; keep no state, and draw with tandem.rng",
    "beside": "gives rows other values beside other rows; draw with tandem.rng from their keys",
    "shared": "returned torch.bool [4, 11]; return States.prompt as None, or a bool tensor [N, S]",
    "whole": "; return States.weight as a float64 tensor [N, L], here [",
    "uncertain": "; return States.hidden as a bool tensor [N, L], here [",
    "outside": "; return in States.row indices of the rows, 0 to 3",
    "averaged": "; return finite States.weight, with none for a row of which nothing is free",
    "unmasking": "writes on free, which others read",
    "failing": "raises AttributeError: ",
}
WORDS = ["plugins=[wrong]", "model=tiny_masked", "algorithm=dpo_online", "~recipe"]


def test_a_likelihood_of_answers_that_draws_from_the_keys_of_rows_is_accepted(plugin):
    plugin(OF_ANSWERS)
    check(compose([*WORDS, "algorithm/likelihood=right"]))


@pytest.mark.parametrize(
    "likelihood",
    [path, merged_path, one_step, coupled_tokens, elbo]
    + [partial(elbo, states=3, masks=masks) for masks in ("independent", "counted")]
    + [partial(elbo, states=2, masks="counted", levels="gauss", p_mask_prompt=0.5)],
)
def test_likelihoods_of_the_package_pass_the_same_trial(likelihood):
    assert try_states(likelihood, torch.linspace(1, 0, 11)) is None


@pytest.mark.parametrize(("name", "fault"), WRONG_STATES.items())
def test_a_likelihood_of_answers_is_tried_on_a_few_rows(plugin, name, fault):
    plugin(OF_ANSWERS)
    with pytest.raises(ConfigError) as refused:
        check(compose([*WORDS, f"algorithm/likelihood={name}"]))
    said = str(refused.value)
    assert said.startswith(f"algorithm/likelihood={name} at wrong.py:") and "\n" not in said
    assert fault in said


OF_STEPS = """
from tandem.contracts import register_likelihood
from tandem.dynamics.likelihood import gaussian_logp

@register_likelihood(clip_scale=0.1)
def right(next_x, step):
    return 0.5 * gaussian_logp(next_x, step)

@register_likelihood(clip_scale=0.1)
def of_images(next_x, step):
    error = (next_x - step.mean) / step.std[:, None, None, None]
    return -error.square().mean((1, 2, 3))

@register_likelihood(clip_scale=0.1)
def of_videos(next_x, step):
    return -(next_x - step.mean).square().mean((1, 2, 3, 4))

@register_likelihood(clip_scale=0.1)
def wide(next_x, step):
    return gaussian_logp(next_x, step)[:, None]

@register_likelihood(clip_scale=0.1)
def of_dimensions(next_x, step):
    return -(next_x - step.mean).square()

@register_likelihood(clip_scale=0.1)
def averaged(next_x, step):
    return gaussian_logp(next_x, step).mean()

@register_likelihood(clip_scale=0.1)
def detached(next_x, step):
    return gaussian_logp(next_x, step).detach()

@register_likelihood(clip_scale=0.1)
def centred(next_x, step):
    return gaussian_logp(next_x, step) - gaussian_logp(next_x, step).mean()

@register_likelihood(clip_scale=0.1)
def infinite(next_x, step):
    return gaussian_logp(next_x, step) / 0

@register_likelihood(clip_scale=0.1)
def writing(next_x, step):
    next_x -= step.mean.detach()
    return -next_x.flatten(1).square().mean(1)

@register_likelihood(clip_scale=0.1)
def failing(next_x, step):
    return next_x @ step.mean[None, 0, 0, 0, 0, 0]
"""
WRONG_VALUES = {
    "wide": "returned torch.float32 [9, 1]; return a tensor [B], whose last axes are here [9]",
    "of_dimensions": "returned torch.float32 [9, 2, 2, 2]; return a tensor [B], whose last axes",
    "averaged": "returned torch.float32 []; return a tensor [B], whose last axes are here [9]",
    "detached": "has no gradient in the mean of the step; leave out .detach() and .item()",
    "centred": "gives a step another value beside other steps",
    "infinite": "returned values that are not finite",
    "writing": "writes on an argument, which others read",
    "failing": "raises IndexError: ",
}
FLOW = ["plugins=[wrong]", "model=tiny_flow", "algorithm=flow_grpo", "~recipe"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("right", []),
        ("of_images", []),
        ("of_videos", ["model=wan2_1_1_3b", "data.path=there"]),
    ],
)
def test_a_likelihood_of_steps_that_is_a_mean_over_dimensions_is_accepted(plugin, name, words):
    plugin(OF_STEPS)
    check(compose([*FLOW, *words, f"dynamics/logp={name}"]))


@pytest.mark.parametrize(("name", "fault"), WRONG_VALUES.items())
def test_a_likelihood_of_steps_is_tried_on_those_of_the_dynamics(plugin, name, fault):
    plugin(OF_STEPS)
    with pytest.raises(ConfigError) as refused:
        check(compose([*FLOW, f"dynamics/logp={name}"]))
    said = str(refused.value)
    assert said.startswith(f"dynamics/logp={name} at wrong.py:") and "\n" not in said
    assert fault in said
