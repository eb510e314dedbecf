"""Messages of a chain name the keys that its two models have there."""

from dataclasses import replace

import pytest
from chain_policy import grpo, riddles, small, unified

from tandem.policies.chain.keys import in_segment
from tandem.policies.chain.records import ChainSampling
from tandem.policies.flow.records import FlowSampling
from tandem.policies.language.records import Sampling

EITHER = pytest.mark.parametrize("make", [small, unified])


@pytest.mark.parametrize(
    ("said", "there"),
    [
        ("set model.latent_size=8", "set model.picture.latent_size=8"),
        ("lower rollout.max_rows,", "lower rollout.picture.max_rows,"),
        (
            "model.lora.r, or model/quantization",
            "model.picture.lora.r, or model/quantization@model.picture.quantization",
        ),
        ("model.adapter.images=2", "model.picture.adapter.images=2"),
    ],
)
def test_a_key_of_one_model_has_its_segment(said, there):
    assert in_segment("picture", said) == there
    assert in_segment("text", there) == there


@pytest.mark.parametrize(
    "said",
    [
        "model.picture.adapter, model.text.lora",
        "model.safetensors lacks model.layers.0 and base_model.path",
        "/runs/model.path has no file",
        "algorithm.timestep_sampling.guidance_scale, evaluation.guidance_scale, set model=chain",
    ],
)
def test_other_words_stay(said):
    assert in_segment("picture", said) == said


@EITHER
def test_a_refused_prompt_names_the_keys_of_the_painter(make):
    policy = make(guidance_scale=2.0)
    ((_, why),) = policy.admit(riddles()[:1])[1]
    assert "which rollout.picture.guidance_scale above 1 needs" in why
    assert "set model.picture.negative_prompt" in why and "rollout.picture.guidance_scale=1" in why
    shown = replace(riddles()[0], media=None)
    assert policy.admit_answered([shown])[1] == [(shown, "has no picture; set data.pictures=true "
                                                  "if rows name files")]  # fmt: skip


def test_a_refused_prompt_names_the_keys_of_the_writer():
    policy = small()
    policy.text.sampling = replace(policy.text.sampling, max_prompt_tokens=2)
    ((_, why),) = policy.admit(riddles()[:1])[1]
    assert "more than 2 (rollout.text.max_prompt_tokens)" in why


@EITHER
def test_a_model_that_cannot_be_loaded_names_its_own_keys(make):
    policy = make()
    own = ChainSampling(text=Sampling(max_new_tokens=4), picture=FlowSampling(steps=4))
    policy.picture.latent_size = 1000
    with pytest.raises(ValueError, match=r"^model\.picture\.latent_size=1000, but .* "
                       r"set model\.picture\.latent_size=768$"):  # fmt: skip
        policy.load(grpo().request(own))
    policy.picture.latent_size, policy.picture.row_budget = 768, 0
    with pytest.raises(ValueError, match=r"^model\.picture\.row_budget is 0"):
        policy.load(grpo().request(own))
    policy.text.build = None
    with pytest.raises(ValueError, match=r"^model\.text\.path is null"):
        policy.load(grpo().request(own))
