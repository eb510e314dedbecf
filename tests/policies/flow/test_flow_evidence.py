"""What training reads from a flow: log-probabilities, transitions, regressions, gradients."""

from dataclasses import replace

import pytest
import torch
from small_flow import (
    KERNELS,
    NOTHING,
    SAME_LOGP,
    gap_to_sampler,
    gradients_of,
    make_prompts,
    sample_rows,
    small,
    step_on,
)
from torch.testing import assert_close

from tandem import rng
from tandem.dynamics.kernels import ode
from tandem.dynamics.regression import Regression, uniform
from tandem.dynamics.weighting import plain
from tandem.policies.flow.policy import SAME
from tandem.policies.weights import Precision
from tandem.types import take

ALL = frozenset({"old_logp", "ref_logp", "transition", "kl_to_old", "kl_to_ref"})
NO_KL = 2e-10  # (1e-6 / 0.05)^2 / 2, of means that differ in their last bits, at std 0.05
EACH_KERNEL = pytest.mark.parametrize("kernel", KERNELS)
FACTS = ("std", "sigma", "next_sigma", "velocity_gain")


def move(policy, rollout):
    """A noticeable update."""
    step_on(policy, policy.evidence(rollout, NOTHING).logp.sum(), lr=1e-2)


def numbers(evidence):
    transition = evidence.transition
    return {"logp": evidence.logp} | {
        name: getattr(transition, name) for name in (*FACTS, "kl_to_old", "kl_to_ref")
    }


def test_what_is_not_asked_for_is_not_there():
    policy = small()
    rollout = sample_rows(policy)
    assert policy.evidence(rollout, NOTHING).transition is None
    transition = policy.evidence(rollout, frozenset({"transition"})).transition
    assert transition.kl_to_old is None and transition.kl_to_ref is None
    assert torch.equal(transition.sigma, rollout.sample.trajectory.sigma)
    assert not transition.std.requires_grad


@EACH_KERNEL
def test_both_kls_are_zero_before_an_update_and_the_closed_form_after_it(kernel):
    policy = small(ALL, sampling={"kernel": KERNELS[kernel]})
    rollout = policy.complete(sample_rows(policy), ALL)
    before = policy.evidence(rollout, ALL).transition
    assert max(before.kl_to_old.max(), before.kl_to_ref.max()) < NO_KL
    move(policy, rollout)
    after = policy.evidence(rollout, ALL).transition
    assert (after.kl_to_ref > 100 * NO_KL).all()
    assert_close(after.kl_to_old, after.kl_to_ref, atol=0, rtol=1e-5)
    now = policy.logprobs.of_steps(policy.model.field, rollout, {"mean"})["mean"]
    gap = now - rollout.sample.trajectory.mean
    want = gap.square().flatten(2).mean(2) / (2 * after.std**2)
    assert_close(after.kl_to_old, want, atol=0, rtol=1e-4)


@EACH_KERNEL
def test_a_reward_pays_the_log_ratio_of_whole_steps_before_the_update(kernel):
    paid = frozenset({"old_kl_to_ref", "old_logp", "ref_logp"})
    policy = small(paid, sampling={"kernel": KERNELS[kernel]})
    assert paid <= policy.describe(policy.request).provides
    rollout = sample_rows(policy)
    move(policy, rollout)
    held = policy.complete(rollout, paid).old_kl_to_ref
    move(policy, rollout)  # a later update does not change it
    again = replace(rollout, old_kl_to_ref=held)
    assert policy.complete(again, paid).old_kl_to_ref is held and not held.requires_grad
    now = policy.complete(replace(rollout, behaviour_logp=None), paid)
    assert not torch.equal(now.old_kl_to_ref, held)
    assert_close(now.old_kl_to_ref, 768 * (now.old_logp - now.ref_logp), atol=1e-2, rtol=1e-3)


def test_the_spread_of_the_log_ratio_is_that_of_the_kl():
    """The policy moved independently of the noise z: log r + KL = <z d> / S over 768 numbers, so
    its variance is 2 KL / 768."""
    policy = small(ALL)
    rollout = policy.complete(sample_rows(policy, 16), ALL)
    with torch.no_grad():
        policy.trainable()["proj_out.bias"] += 0.1 * rng.normal(5, (48,))
    said = policy.evidence(rollout, ALL)
    log_ratio = said.logp - rollout.old_logp + said.transition.kl_to_old
    spread = log_ratio.square().mean() / (2 * said.transition.kl_to_old / 768).mean()
    assert 0.7 < spread < 1.4


def test_old_means_are_the_samplers_and_found_again_where_it_kept_none():
    keeping = small(ALL)
    rollout = sample_rows(keeping)
    kept = rollout.sample.trajectory.mean
    assert keeping.complete(rollout, ALL).sample.trajectory.mean is kept
    policy = small()
    rollout = sample_rows(policy)
    found = policy.complete(rollout, frozenset({"kl_to_old"})).sample.trajectory.mean
    assert rollout.sample.trajectory.mean is None
    assert_close(found, kept, atol=1e-6, rtol=1e-6)


def test_old_means_and_log_probabilities_are_of_one_origin():
    """A sampler whose log-probabilities are rejected loses its means too."""
    policy = small(ALL)
    rollout = sample_rows(policy)
    kept = rollout.sample.trajectory
    lied = replace(
        rollout,
        behaviour_logp=rollout.behaviour_logp + 1e-4,
        sample=replace(rollout.sample, trajectory=replace(kept, mean=kept.mean + 0.1)),
    )
    found = policy.complete(lied, ALL)
    assert_close(found.old_logp, rollout.behaviour_logp, **SAME_LOGP)
    assert_close(found.sample.trajectory.mean, kept.mean, atol=1e-6, rtol=1e-6)
    move(policy, rollout)  # the completed values stay
    again = policy.complete(found, ALL)
    assert again.old_logp is found.old_logp and again.sample.trajectory is found.sample.trajectory


@EACH_KERNEL
def test_cuts_change_neither_numbers_nor_gradients(kernel):
    policy = small(ALL, sampling={"kernel": KERNELS[kernel]})
    rollout = policy.complete(sample_rows(policy), ALL)
    move(policy, rollout)
    weight = rng.normal(1, tuple(rollout.mask.shape))
    found = []
    for rows in (64, 24, 9):
        policy.forward_pass.max_rows = rows
        said = policy.evidence(rollout, ALL)
        kls = said.transition.kl_to_ref + said.transition.kl_to_old
        gradients = gradients_of(policy, (weight * said.logp + 3 * kls).sum())
        found.append((numbers(said), gradients))
    for said, gradients in found[1:]:
        for name, value in said.items():
            assert_close(value, found[0][0][name], atol=1e-6, rtol=1e-5)
        for name, gradient in gradients.items():
            assert_close(gradient, found[0][1][name], atol=1e-4, rtol=1e-4)
            assert found[0][1][name].any() or "context_embedder" not in name


def test_micro_batches_add_up():
    policy = small()
    rollout = sample_rows(policy)
    whole = gradients_of(policy, policy.evidence(rollout, NOTHING).logp.sum())
    parts = [take(rollout, rows) for rows in torch.arange(16).split(8)]
    halves = [gradients_of(policy, policy.evidence(p, NOTHING).logp.sum()) for p in parts]
    for name, gradient in whole.items():
        assert_close(halves[0][name] + halves[1][name], gradient, atol=1e-3, rtol=1e-4)


def test_the_gradient_of_the_log_probability_is_a_finite_difference():
    policy = small()
    rollout = sample_rows(policy, 2)
    name = "proj_out.bias"
    gradient = gradients_of(policy, policy.evidence(rollout, NOTHING).logp.sum())[name]
    parameter, place, width = policy.trainable()[name], int(gradient.abs().argmax()), 1e-2
    said = []
    for sign in (1, -1):
        with torch.no_grad():
            parameter[place] += sign * width
            said.append(policy.evidence(rollout, NOTHING).logp.double().sum())
            parameter[place] -= sign * width
    slope = (said[0] - said[1]) / (2 * width)
    assert_close(gradient[place].double(), slope, atol=1e-3, rtol=2e-3)


def test_outside_the_mask_all_is_zero_and_untouched():
    policy = small(ALL)
    rollout = policy.complete(sample_rows(policy), ALL)
    move(policy, rollout)
    whole = numbers(policy.evidence(rollout, ALL))
    mask = rollout.mask.clone()
    mask[3], mask[:, 2] = False, False
    part = numbers(policy.evidence(replace(rollout, mask=mask), ALL))
    for name, value in part.items():
        assert (value[~mask] == 0).all()
        assert_close(value[mask], whole[name][mask], atol=1e-6, rtol=1e-5)


def test_a_rollout_without_a_trained_step_still_reaches_every_weight():
    policy = small()
    rollout = sample_rows(policy, 2)
    logp = policy.evidence(replace(rollout, mask=torch.zeros_like(rollout.mask)), NOTHING).logp
    assert (logp == 0).all()
    assert all((g == 0).all() for g in gradients_of(policy, logp.sum()).values())


def test_a_picture_is_told_by_the_error_of_its_velocity():
    """Flow matching by hand: x = (1 - s) x0 + s e, and minus the mean square of v - (e - x0)."""
    policy = small(sampling={"kernel": ode})
    rollout = sample_rows(policy, 2)
    keys = rollout.sample.key
    noise = rng.normal(rng.key(keys, "noise"), (1, 3, 16, 16))[:, 0]
    u = rng.uniform(rng.key(keys, "sigma"), (1,))[:, 0]
    sigma = torch.distributions.Normal(0, 1).icdf(u).sigmoid().float()
    x0, s = rollout.sample.x0, sigma.view(-1, 1, 1, 1)
    conditioning = policy.library.rows(rollout.prompts, policy.device, guided=False)
    x = (1 - s) * x0 + s * noise
    velocity = policy.model.field(x, sigma, conditioning, scale=1.0)
    want = -(velocity - (noise - x0)).square().flatten(1).mean(1)
    assert_close(policy.evidence(rollout, NOTHING).logp[:, 0], want, atol=1e-5, rtol=1e-5)
    assert (keys.view(4, 2) == keys.view(4, 2)[:, :1]).all()  # a group is compared at one noise
    assert len(keys.unique()) == 4


STRATIFIED = Regression(levels=uniform, weighting=plain, count=3, stratified=True)


def test_several_noise_levels_are_averaged():
    policy = small(sampling={"kernel": ode}, timesteps=STRATIFIED)
    rollout = sample_rows(policy, 2)
    together = policy.evidence(rollout, NOTHING).logp
    policy.forward_pass.max_rows = 6
    assert_close(policy.evidence(rollout, NOTHING).logp, together, atol=1e-5, rtol=1e-5)
    levels = STRATIFIED.sigma(rollout.sample.key, policy.schedule())
    assert ((levels * 3).floor().sort(1).values == torch.arange(3)).all()  # one in each third
    assert not (levels.sort(1).values == levels).all()
    each = policy.errors(rollout, NOTHING)
    assert_close(together[:, 0], -each["error"].square().mean((1, 2)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kernel", ["ode", "flow_sde"])
def test_old_and_reference_start_where_the_policy_is(kernel):
    policy = small(ALL, sampling={"kernel": {"ode": ode, **KERNELS}[kernel]})
    rollout = policy.complete(sample_rows(policy), ALL)
    live = policy.evidence(rollout, NOTHING).logp.detach()
    assert_close(rollout.old_logp, live, **SAME_LOGP)
    assert_close(rollout.ref_logp, live, **SAME_LOGP)
    assert not rollout.ref_logp.requires_grad
    move(policy, rollout)
    again = policy.complete(replace(rollout, ref_logp=None, old_logp=None), ALL)
    assert torch.equal(again.ref_logp, rollout.ref_logp)
    assert not torch.equal(policy.evidence(rollout, NOTHING).logp, live)


def test_a_sampler_that_differs_is_not_believed():
    policy = small()
    rollout = sample_rows(policy)
    other = replace(rollout, behaviour_logp=rollout.behaviour_logp + 1e-4)
    found = policy.complete(other, ALL & {"old_logp"}).old_logp
    assert_close(found, rollout.behaviour_logp, **SAME_LOGP)
    assert policy.state()["sampler"] == 0
    fresh = small()
    assert fresh.complete(rollout, ALL & {"old_logp"}).old_logp is rollout.behaviour_logp
    fresh.load_state(policy.state())
    assert fresh.complete(rollout, ALL & {"old_logp"}).old_logp is not rollout.behaviour_logp


def test_guidance_replays_and_both_velocities_learn():
    policy = small(sampling={"guidance_scale": 3.0}, negative_prompt="")
    rollout = sample_rows(policy)
    assert gap_to_sampler(policy, rollout) < SAME
    conditioning = policy.library.rows(rollout.prompts, policy.device, guided=True)
    x, sigma = rollout.sample.x0, torch.full((16,), 0.5)
    with torch.no_grad():
        apart = [
            policy.model.field.predict(x, sigma, condition)
            for condition in (conditioning.prompted, conditioning.unprompted)
        ]
        both = policy.model.field(x, sigma, conditioning, scale=3.0)
    assert_close(both, apart[1] + 3 * (apart[0] - apart[1]), atol=1e-5, rtol=1e-5)
    plain = small()
    assert (sample_rows(plain).sample.x0 - rollout.sample.x0).abs().max() > 0.01


def test_guidance_without_a_negative_prompt_is_an_error():
    policy = small(sampling={"guidance_scale": 3.0})
    with pytest.raises(ValueError, match="encode a negative prompt, or set guidance_scale=1"):
        sample_rows(policy)
    _, dropped = policy.admit(make_prompts())
    assert len(dropped) == 4 and "negative_prompt" in dropped[0][1]
    _, dropped = policy.admit(make_prompts(negative_prompt="far too many words for the model"))
    assert len(dropped) == 4 and "7 words" in dropped[0][1]
    own = make_prompts(negative_prompt="green")
    plain = small()
    guided = replace(plain.sampling, guidance_scale=4.0)
    (_, reason), *_ = plain.admit(make_prompts(), [plain.sampling, guided])[1]
    assert "evaluation.guidance_scale=1" in reason and "model.negative_prompt" in reason
    assert plain.admit(make_prompts()) == (make_prompts(), [])
    assert policy.admit(own) == (own, [])
    assert len(policy.sample(own, 1, key=0, slots=range(4)).outputs) == 4


def test_rows_of_two_scales_do_not_share_a_pass():
    policy = small(negative_prompt="")
    rollout = sample_rows(policy, 2)
    guidance = rollout.sample.guidance.clone()
    guidance[1] = 2.0
    mixed = replace(rollout, sample=replace(rollout.sample, guidance=guidance))
    with pytest.raises(ValueError, match=r"guidance scales \[1.0, 2.0\]"):
        policy.evidence(mixed, NOTHING)


def test_passes_in_mixed_precision_do_not_hold_on_to_old_weights():
    policy = small(precision=Precision(mixed=True))
    rollout = sample_rows(policy)
    first = policy.evidence(rollout, NOTHING).logp
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.mul_(1.05)
    second = policy.evidence(rollout, NOTHING).logp
    assert not policy.exact
    assert_close(first.detach(), rollout.behaviour_logp, atol=2**-9, rtol=0)  # of bfloat16
    assert (second - first).abs().max() > 1e-3
