"""The critic of a flow: the expected reward before each step."""

from dataclasses import replace

import torch
from small_flow import NOTHING, SAME_LOGP, gradients_of, sample_rows, small
from torch.testing import assert_close

from tandem import rng
from tandem.policies.lora import Lora

VALUES = frozenset({"values", "old_values"})


def critical(**options):
    """A critic with nonzero values; a new one returns 0."""
    policy = small(VALUES, **options)
    with torch.no_grad():
        policy.model.critic.head.weight += rng.normal(3, (1, 64))
    return policy


def test_a_new_critic_expects_nothing_and_can_learn():
    policy = small(VALUES)
    rollout = policy.complete(sample_rows(policy), VALUES)
    assert (rollout.old_values == 0).all()
    policy.evidence(rollout, VALUES).values.sum().backward()
    assert policy.model.critic.head.weight.grad.any()


def test_a_value_is_read_off_the_states_before_the_last_layer():
    policy = critical()
    rollout = sample_rows(policy)
    values = policy.evidence(rollout, VALUES).values
    taken, network, critic = rollout.sample.trajectory, policy.model.network, policy.model.critic
    condition = policy.library.rows(rollout.prompts[5:6], policy.device, guided=False).prompted
    seen = []
    network.transformer_blocks[-1].register_forward_hook(lambda m, given, out: seen.append(out[1]))
    with torch.no_grad():
        policy.adapter.velocity(network, taken.path[5, 2:3], taken.sigma[5, 2:3], condition)
        mean = seen[0][0].mean(0)
        want = critic.head(torch.nn.functional.silu(critic.inner(mean)))[0]
    assert_close(values[5, 2], want, atol=1e-5, rtol=1e-5)


def test_values_know_state_level_and_prompt_but_not_the_step_that_follows():
    policy = critical()
    rollout = sample_rows(policy)
    values = policy.evidence(rollout, VALUES).values
    taken = rollout.sample.trajectory
    path = taken.path.clone()
    path[:, 3] += 1.0  # after step 2, before step 3
    other = replace(rollout, sample=replace(rollout.sample, trajectory=replace(taken, path=path)))
    moved = policy.evidence(other, VALUES).values
    changed = (moved - values).abs().max(0).values > 1e-4
    assert changed.tolist() == [False, False, False, True]
    renamed = replace(rollout, prompts=rollout.prompts[::-1])
    assert (policy.evidence(renamed, VALUES).values - values).abs().max() > 1e-4


def test_under_guidance_the_value_is_that_of_the_prompt_alone():
    guided = critical(sampling={"guidance_scale": 2.0}, negative_prompt="")
    rollout = sample_rows(guided)
    plain = replace(rollout.sample, guidance=torch.ones(16, dtype=torch.float64))
    want = guided.evidence(replace(rollout, sample=plain), VALUES).values
    assert_close(guided.evidence(rollout, VALUES).values, want, atol=1e-5, rtol=1e-5)


def test_a_critic_changes_no_log_probability_and_survives_cuts():
    policy = critical(sampling={"guidance_scale": 2.0}, negative_prompt="")
    rollout = policy.complete(sample_rows(policy), VALUES)
    whole = policy.evidence(rollout, VALUES)
    assert_close(whole.logp.detach(), rollout.behaviour_logp, **SAME_LOGP)
    gradient = gradients_of(policy, (whole.values + whole.logp).sum())
    policy.forward_pass.max_rows = 9
    parts = policy.evidence(rollout, VALUES)
    assert_close(parts.values, rollout.old_values, atol=1e-5, rtol=1e-5)
    for name, other in gradients_of(policy, (parts.values + parts.logp).sum()).items():
        assert_close(other, gradient[name], atol=1e-3, rtol=1e-3)


def test_it_is_a_group_of_its_own_and_travels_with_the_weights():
    for lora in (None, Lora(r=2, alpha=4, target_modules="attention")):
        policy = critical(lora=lora)
        assert list(policy.groups()) == ["policy", "critic"]
        assert len(policy.groups()["critic"]) == 4
        names = {name for name in policy.weights() if name.startswith("critic.")}
        assert len(names) == 4
        assert sum(len(g) for g in policy.groups().values()) == len(policy.trainable())
    plain = small()
    assert plain.model.critic is None and list(plain.groups()) == ["policy"]
    assert plain.evidence(sample_rows(plain), NOTHING).values is None
