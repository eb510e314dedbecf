"""Engines of plugins that sample from the trained weights, and latents of their families: what they
return is checked in the first iteration, as that of engines with a copy of the weights."""

import pytest
from gate import each
from written_plugin import words_of

pytestmark = pytest.mark.usefixtures("unregistered")

ENGINES = """
from dataclasses import replace

import torch
from tandem import register_flow_family, register_rollout_engine
from tandem.policies.engines.protocol import EngineOption
from tandem.policies.flow.engine import PictureOption
from tandem.policies.flow.families.tiny_flow import SIZE, TinyFlow
from tandem.policies.flow.sampling import LocalPictures
from tandem.policies.language.decoding import Local

@register_rollout_engine("answering")
class Answering(EngineOption):
    shares_weights = True

    def host(self, policy):
        self.own = Local(policy.model)
        return self

    def answer(self, prompts, keys, *, sampling, endings):
        answers = self.own.answer(prompts, keys, sampling=sampling, endings=endings)
        return replace(answers, CHANGED)

@register_rollout_engine("painting")
class Painting(PictureOption):
    shares_weights = True

    def host(self, policy):
        self.own = LocalPictures(policy.model.field, policy.library)
        return self

    def generate(self, prompts, keys, starts, plan):
        output, pictures = self.own.generate(prompts, keys, starts, plan)
        taken = output.trajectory
        return replace(output, trajectory=replace(taken, CHANGED)), pictures

@register_flow_family("own_flow", latent_size=3 * SIZE * SIZE)
class Own(TinyFlow):
    def latents(self, images, device):
        return super().latents(images, device)CHANGED
"""
TOKENS = {
    "logp=answers.logp.half()": "torch.float16 [16, ",
    "logp=answers.logp[:, :1]": "torch.float32 [16, 1]; return Answers.logp as torch.float32 [16, ",
    "tokens=answers.tokens + 99": "wrong values: Answers.tokens must be ids from 0 to ",
    'length=answers.length.to("meta")': "torch.int64 [16] on cpu, not on meta",
}
STEPS = {
    "std=taken.std[:, :1]": "torch.float32 [8, 1]; return Trajectory.std as torch.float32 [8, 2]",
    "path=taken.path.half()": "torch.float16 [8, 3, 3, 16, 16]; return Trajectory.path as torch.fl",
    "place=taken.place.int()": "return Trajectory.place as torch.int64 [8, 2]",
    'sigma=taken.sigma.to("meta")': "Trajectory.sigma as torch.float32 [8, 2] on cpu, not on meta",
}
FLOW = ["rollout.steps=3", "num_minibatches=1", "prompts_per_step=2", "iterations=1"]


@pytest.mark.parametrize("fault", each(2, TOKENS))
def test_answers_of_an_engine_that_shares_the_weights_are_checked(plugin, fault):
    words = plugin(ENGINES.replace("CHANGED", fault, 1).replace("CHANGED", ""))
    said = words_of(words, "rollout=answering")
    assert said.startswith("Answering.answer at wrong.py:") and TOKENS[fault] in said


@pytest.mark.parametrize("fault", each(3, STEPS))
def test_steps_of_an_engine_that_shares_the_weights_are_checked(plugin, fault):
    first, _, rest = ENGINES.partition("CHANGED")
    text = first + rest.replace("CHANGED", fault, 1).replace("CHANGED", "")
    words = plugin(text, reward="model=tiny_flow algorithm=flow_grpo reward=colour_share")
    said = words_of([x for x in words if "data." not in x], *FLOW, "rollout=painting")
    assert said.startswith("Painting.generate at wrong.py:") and STEPS[fault] in said


def test_latents_of_a_family_have_the_shape_of_its_canvas(plugin):
    first, _, rest = ENGINES.partition("CHANGED")
    text = (first + rest.replace("CHANGED", "", 1)).replace("CHANGED", ".mean(1)")
    words = plugin(text, reward="model=own_flow data=shapes algorithm=sft")
    said = words_of([x for x in words if "data." not in x], *FLOW, "group_size=1")
    assert said.startswith("Own.latents at wrong.py:")
    assert (
        "returned torch.float32 [2, 16, 16]; return latents as torch.float32 [2, 3, 16, 16]" in said
    )
