"""Sampled trajectories: noise, records and log-probabilities."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from small_flow import (
    KERNELS,
    KEY,
    NOTHING,
    SAME_LOGP,
    gap_to_sampler,
    make_prompts,
    sample_rows,
    small,
    step_on,
)
from torch.testing import assert_close

from tandem.dynamics.kernels import ode
from tandem.dynamics.likelihood import unscaled_logp
from tandem.dynamics.schedules import linear_shift
from tandem.dynamics.steps import random_steps, sliding_window
from tandem.policies.flow.embeddings import input_of
from tandem.policies.flow.policy import SAME
from tandem.types import concat, take

EACH_KERNEL = pytest.mark.parametrize("kernel", KERNELS)
STORAGE = pytest.mark.parametrize("storage", ["float32", "bfloat16"])


def pick(*steps):
    """Exactly these steps are random."""
    return lambda count, iteration, seed: steps


def test_the_log_probability_is_the_density_of_the_step_written_out():
    """Flow-SDE by hand, on the network's own forward pass: the mean of log N(x'; m, S)."""
    policy = small()
    rollout = sample_rows(policy, 2)
    taken, network = rollout.sample.trajectory, policy.model.network
    for row, step in ((0, 0), (3, 1), (7, 3)):
        condition = next(policy.adapter.encode([input_of(rollout.prompts[row])], policy.device))
        x, arrived = taken.path[row, step], taken.path[row, step + 1]
        sigma, after = taken.sigma[row, step].item(), taken.next_sigma[row, step].item()
        with torch.no_grad():
            v = network(
                x[None], condition["states"][None], condition["pooled"][None],
                torch.tensor([1000 * sigma]),
            ).sample[0]  # fmt: skip
        dt = after - sigma
        s = 0.7 * math.sqrt(sigma / (1 - (after if sigma == 1 else sigma)))
        mean = x * (1 + s**2 / (2 * sigma) * dt) + v * (1 + s**2 * (1 - sigma) / (2 * sigma)) * dt
        density = torch.distributions.Normal(mean, s * math.sqrt(-dt)).log_prob(arrived).mean()
        assert_close(rollout.behaviour_logp[row, step], density, atol=2e-5, rtol=1e-5)


@EACH_KERNEL
@STORAGE
def test_the_first_ratio_is_one_and_the_second_is_not(kernel, storage):
    """One up to float32 rounding, which depends on the number of rows of a matrix product. A state
    rounded after its use would differ a hundred times as much, see below."""
    policy = small(sampling={"kernel": KERNELS[kernel], "storage": storage})
    rollout = sample_rows(policy)
    for rows in (1, 8, 13, 16, 63, 64):  # however steps x pictures are cut
        policy.forward_pass.max_rows = rows
        assert gap_to_sampler(policy, rollout) < SAME
    step_on(policy, policy.evidence(rollout, NOTHING).logp[:, 0].sum(), lr=0.1)
    assert gap_to_sampler(policy, rollout) > 100 * SAME


@EACH_KERNEL
def test_states_that_are_rounded_after_their_use_are_told_from_rounding(kernel):
    policy = small(sampling={"kernel": KERNELS[kernel]})
    rollout = sample_rows(policy)
    path = rollout.sample.trajectory.path
    path.copy_(path.bfloat16())
    assert gap_to_sampler(policy, rollout) > 100 * SAME


def test_the_density_of_the_papers_cps_replays_too():
    policy = small(sampling={"kernel": KERNELS["cps"], "logp": unscaled_logp})
    rollout = sample_rows(policy)
    assert gap_to_sampler(policy, rollout) < SAME
    assert (rollout.behaviour_logp <= 0).all()


def test_all_but_the_last_step_are_kept_and_each_state_once():
    taken = sample_rows(small(steps=5), 2).sample.trajectory
    assert taken.path.shape == (8, 5, 3, 16, 16)  # 4 steps between 5 states
    assert taken.place.tolist() == 8 * [[0, 1, 2, 3]]
    sigmas = linear_shift(5, 16)
    assert torch.equal(taken.sigma[0], sigmas[:4]) and torch.equal(taken.next_sigma[0], sigmas[1:5])
    assert taken.mean is None


@STORAGE
def test_nothing_is_kept_of_deterministic_steps(storage):
    policy = small(steps=6, sampling={"stochastic": pick(1, 2, 4), "storage": storage})
    rollout = sample_rows(policy, 2)
    taken = rollout.sample.trajectory
    assert rollout.mask.shape == (8, 3) and rollout.mask.all()
    assert taken.path.shape[1] == 5  # before 1, before 2, after 2; before and after 4
    assert taken.place[0].tolist() == [0, 1, 3]
    assert torch.equal(taken.sigma[0], linear_shift(6, 16)[[1, 2, 4]])
    assert gap_to_sampler(policy, rollout) < SAME


@pytest.mark.parametrize("found", [np.array([1, 2]), range(1, 3), {1, 2}], ids=str)
def test_chosen_steps_may_be_any_collection(found):
    policy = small(steps=6, sampling={"stochastic": lambda *_: found})
    assert sample_rows(policy, 2).mask.shape == (8, 2)


@EACH_KERNEL
def test_the_noise_of_steps_is_standard_normal_and_no_two_are_alike(kernel):
    policy = small(frozenset({"kl_to_old"}), sampling={"kernel": KERNELS[kernel]})
    rollout = sample_rows(policy, 8)
    taken = rollout.sample.trajectory
    std = policy.evidence(rollout, frozenset({"transition"})).transition.std
    noise = (taken.path[:, 1:] - taken.mean) / std[..., None, None, None]
    noise = noise.flatten(2).flatten(0, 1)  # [samples x steps, 768]
    assert abs(noise.mean()) < 0.02 and abs(noise.std() - 1) < 0.02
    likeness = noise @ noise.T / 768 - torch.eye(len(noise))
    assert likeness.abs().max() < 0.3


def test_states_are_kept_in_the_storage_dtype_and_the_picture_is_not():
    rollout = sample_rows(small(sampling={"storage": "bfloat16"}), 2)
    assert rollout.sample.trajectory.path.dtype == torch.bfloat16
    x0 = rollout.sample.x0
    assert x0.dtype == torch.float32 and (x0 != x0.bfloat16().float()).any()


def test_the_ode_leaves_a_picture_and_no_steps():
    policy = small(sampling={"kernel": ode})
    rollout = sample_rows(policy, 2)
    assert rollout.sample.trajectory is None and rollout.behaviour_logp is None
    assert rollout.mask.tolist() == 8 * [[True]] and rollout.length.tolist() == 8 * [1]


def test_pictures_are_what_the_latents_show():
    rollout = sample_rows(small(), 2)
    assert len(rollout.outputs) == 8
    picture = rollout.outputs[5]
    assert picture.shape == (16, 16, 3) and picture.dtype == torch.uint8
    want = (rollout.sample.x0[5].clamp(-1, 1) + 1) / 2
    assert_close(picture.permute(2, 0, 1) / 255, want, atol=0.5 / 255 + 1e-6, rtol=0)


def test_the_noise_of_a_picture_is_its_own_whatever_is_beside_it():
    policy = small()
    whole = sample_rows(policy, 4)
    assert len(whole.sample.x0.flatten(1).unique(dim=0)) == 16
    alone = policy.sample(make_prompts()[2:3], 3, key=KEY, slots=[2])
    policy = small(sampling={"max_rows": 5})
    narrow = sample_rows(policy, 4)
    for other, rows in ((alone, [8, 9, 10]), (narrow, range(16))):
        rows = torch.tensor(rows)
        same = take(whole, rows)
        assert_close(other.sample.x0, same.sample.x0, atol=1e-5, rtol=1e-5)
        assert torch.equal(other.sample.trajectory.path[:, 0], same.sample.trajectory.path[:, 0])
        assert_close(other.behaviour_logp, same.behaviour_logp, atol=1e-5, rtol=1e-5)
    again = sample_rows(policy, 4)
    assert torch.equal(again.sample.x0, narrow.sample.x0)


def test_shared_noise_is_where_a_group_starts_and_only_there():
    start = sample_rows(small(sampling={"shared_noise": True}), 3).sample.trajectory.path
    start, after = (start[:, i].view(4, 3, -1) for i in (0, 1))
    assert (start == start[:, :1]).all()
    assert (start[:, 0] != start[:1, 0]).any(1).tolist() == [False, True, True, True]
    assert (after[:, 1] != after[:, 0]).any(1).all()


def test_random_steps_follow_the_iteration():
    policy = small(steps=12, sampling={"stochastic": partial(random_steps, num_sde_steps=2)})
    seen = []
    for iteration in range(6):
        policy.iteration = iteration
        sigma = sample_rows(policy, 1).sample.trajectory.sigma
        assert (sigma == sigma[:1]).all()
        seen.append(tuple(sigma[0].tolist()))
    assert len(set(seen)) > 2
    policy = small(steps=6, sampling={"stochastic": partial(sliding_window, length=2)})
    policy.iteration = 25
    sigma = sample_rows(policy, 1).sample.trajectory.sigma[0]
    assert torch.equal(sigma, linear_shift(6, 16)[1:3])


def test_a_rollout_is_cut_and_joined_like_any_record():
    policy = small()
    rollout = sample_rows(policy, 4)
    rows = torch.tensor([9, 2, 14, 3, 5, 6, 7, 8])
    apart = concat([take(rollout, rows[:3]), take(rollout, rows[3:])])
    logp = policy.evidence(apart, NOTHING).logp
    assert_close(logp.detach(), rollout.behaviour_logp[rows], **SAME_LOGP)
    assert torch.equal(apart.outputs[1], rollout.outputs[2])


def test_words_and_their_order_matter():
    policy = small()
    rollouts = [
        sample_rows(policy, 1, texts=[t]) for t in ("red circle", "circle red", "blue circle")
    ]
    x0 = torch.stack([rollout.sample.x0[0] for rollout in rollouts])
    assert len(x0.flatten(1).unique(dim=0)) == 3


def one_level_short(steps, tokens):
    return torch.linspace(1, 0, steps)


def test_a_schedule_of_too_few_levels_is_refused():
    with pytest.raises(
        ValueError, match=r"=one_level_short of 2 steps returned .*, not 3 \(steps \+ 1\)"
    ):
        small(steps=2, sampling={"schedule": one_level_short})
