"""A critic on the policy's own layers, and one with separate layers."""

from dataclasses import replace

import pytest
import torch
from small_language import questions, small
from test_families import families
from torch.testing import assert_close

from tandem.policies.language.tiny_lm import character_tokenizer
from tandem.policies.lora import Lora

VALUES = frozenset({"values", "old_values"})
KINDS = ["head", "separate"]


def make_policy(**options):
    """A policy whose critic returns nonzero values."""
    policy = small(VALUES, **options)
    torch.manual_seed(1)
    torch.nn.init.normal_(policy.critic.head.weight)
    return policy


def show(policy):
    return policy.encode(questions(), key=0, slots=range(8))


@pytest.mark.parametrize("critic", KINDS)
def test_values_begin_at_zero_and_stay_inside_the_mask(critic):
    policy = small(VALUES, critic=critic)
    rollout = show(policy)
    assert not policy.evidence(rollout, VALUES).values.any()
    spoken = make_policy(critic=critic).evidence(rollout, VALUES).values
    assert spoken[rollout.mask].all()
    assert not spoken[~rollout.mask].any()


@pytest.mark.parametrize("critic", KINDS)
def test_a_value_is_that_of_what_stands_before_its_token(critic):
    policy = make_policy(critic=critic)
    rollout = show(policy)
    before = policy.evidence(rollout, VALUES).values
    tokens = rollout.sample.tokens.clone()
    row, step = 3, 1  # another token at step 1 changes the value of step 2, and of no earlier step
    tokens[row, rollout.sample.prompt_length[row] + step] += 1
    after = policy.evidence(replace(rollout, sample=replace(rollout.sample, tokens=tokens)), VALUES)
    assert_close(after.values[row, : step + 1], before[row, : step + 1], rtol=0, atol=1e-6)
    assert (after.values[row, step + 1] - before[row, step + 1]).abs() > 1e-4


def test_a_head_teaches_the_layers_and_a_separate_critic_leaves_them_alone():
    for critic, taught in (("head", True), ("separate", False)):
        policy = make_policy(critic=critic)
        policy.evidence(show(policy), VALUES).values.square().sum().backward()
        groups = policy.groups()
        assert any(p.grad is not None and p.grad.any() for p in groups["policy"]) == taught
        assert any(p.grad is not None and p.grad.any() for p in groups["critic"])
        assert len(groups["critic"]) == (2 if critic == "head" else 2 + len(groups["policy"]))


@pytest.mark.parametrize("critic", KINDS)
def test_values_before_the_update_are_those_of_the_training_forward(critic):
    policy = make_policy(critic=critic, token_budget=40)  # a few rows at a time
    rollout = policy.complete(show(policy), VALUES)
    assert_close(rollout.old_values, policy.evidence(rollout, VALUES).values, rtol=0, atol=1e-5)
    assert not rollout.old_values.requires_grad


@pytest.mark.parametrize("critic", KINDS)
def test_a_checkpoint_holds_the_critic(critic):
    policy, again = make_policy(critic=critic), small(VALUES, critic=critic)
    again.load_weights({name: weight.clone() for name, weight in policy.weights().items()})
    rollout = show(policy)
    assert_close(again.evidence(rollout, VALUES).values, policy.evidence(rollout, VALUES).values)


@pytest.mark.parametrize("critic", KINDS)
def test_a_critic_stands_beside_adapters(critic):
    policy = make_policy(critic=critic, lora=Lora(r=2, alpha=4))
    policy.evidence(show(policy), VALUES).values.sum().backward()
    assert policy.critic.head.weight.grad.any()
    assert all(".lora_" in name or name.startswith("critic.") for name in policy.weights())


def test_nothing_is_built_that_nobody_reads():
    assert small(critic="separate").critic is None


def test_a_model_that_hides_its_states_needs_a_critic_of_its_own():
    """Cohere scales its logits, so the policy reads them whole."""
    from transformers import AutoModelForCausalLM

    def build():
        return AutoModelForCausalLM.from_config(families()["cohere"]), character_tokenizer()

    with pytest.raises(ValueError, match=r"set model\.critic=separate"):
        small(VALUES, build=build)
    policy = make_policy(build=build, critic="separate")
    assert policy.evidence(show(policy), VALUES).values.any()
