"""Distribution matching against its reference values."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from tandem.algorithm.matching import errors_of
from tandem.dynamics.matching import anywhere, continue_noise, noise_again, reverse, trajectory
from tandem.dynamics.regression import energy
from tandem.losses.decoupled import beyond_reference, group_score, has_gone_far
from tandem.losses.matching import (
    distance_between,
    dmd2,
    fake_velocity,
    fake_x0,
    has_run_away,
    surrogate,
    tdm,
    tdm_r1,
)
from tandem.types import DecoupledBatch, MatchingBatch, NetworkAnswer, Summary

close = partial(assert_close, atol=1e-6, rtol=0)


def batch_of(flow, x, sigma_of_state, query, sigma, importance=None):
    """The fixture's velocities: live at the state x, the older one for the fake score."""
    velocity = flow("fixture/v").requires_grad_()
    x0 = x - sigma_of_state * velocity
    true = (query - x0.detach()) / sigma  # noise - x0, from the query itself
    real, fake = (query - sigma * flow(f"fixture/{name}") for name in ("v_ref", "v_old"))
    ones = torch.ones(4, 1, dtype=torch.float64)
    answer = NetworkAnswer(error=(flow("fixture/v_old") - true)[:, None], x0=fake[:, None])
    batch = MatchingBatch(
        x0=x0[:, None], real_x0=real[:, None], networks={"fake": answer}, sigma=sigma * ones,
        importance=ones if importance is None else importance[:, None], advantages=0 * ones,
        mask=ones.bool(), group=torch.arange(4) // 2, scored=ones[:, 0].bool(),
    )  # fmt: skip
    return velocity, batch


def expecting(batch, **x0):
    """The same batch with the images predicted by these networks."""
    known = batch.networks["fake"]
    networks = {name: replace(known, x0=x) for name, x in x0.items()}
    return replace(batch, networks=batch.networks | networks)


def case_dmd2(flow):
    x0 = flow("fixture/eps") - flow("fixture/v")
    query = 0.5 * x0 + 0.5 * flow("tdm/fresh")
    return batch_of(flow, flow("fixture/eps"), 1.0, query, 0.5)


def case_tdm(flow):
    sigma = flow("tdm/sigma_t").item()
    importance = flow("tdm/importance")
    return batch_of(
        flow, flow("tdm/x"), flow("tdm/sigma_upper").item(), flow("tdm/x_query"), sigma, importance
    )


def test_dmd2_is_the_reference_one(flow):
    velocity, batch = case_dmd2(flow)
    close(distance_between(batch.x0, batch.real_x0)[:, 0], flow("dmd2/normaliser"))
    loss = dmd2(batch).mean()
    close(loss.detach(), flow("dmd2/generator_loss"))
    close(torch.autograd.grad(loss, velocity)[0], flow("dmd2/dloss_dv"))
    close(fake_velocity(errors_of(batch, "fake")).mean(), flow("dmd2/fake_loss"))


def test_tdm_is_the_reference_one(flow):
    velocity, batch = case_tdm(flow)
    loss = tdm(batch).mean()
    close(loss.detach(), flow("tdm/generator_huber"))
    (gradient,) = torch.autograd.grad(loss, velocity, retain_graph=True)
    close(gradient, flow("tdm/dhuber_dv"))
    close(tdm(batch, huber=0.0).mean().detach(), flow("tdm/generator_half_sq"))
    assert flow("tdm/snr").item() == pytest.approx((0.4 / 0.6) ** 2, abs=1e-9)
    close(fake_x0(errors_of(batch, "fake")).mean(), flow("tdm/fake_loss"))


def test_the_noise_goes_on_from_the_one_that_is_left(flow):
    levels = [flow(f"tdm/{name}").expand(4) for name in ("sigma_t", "sigma_mid")]
    mixed, weight = continue_noise(flow("tdm/implied_noise"), flow("tdm/fresh"), *levels)
    close(mixed, flow("tdm/mixed"))
    close(weight, flow("tdm/importance"))
    kept = (1 - levels[0]) / (1 - levels[1]) * levels[1]
    close(kept[0], flow("tdm/old_noise_coef"))
    close((levels[0].square() - kept.square()).sqrt()[0], flow("tdm/beta"))


def test_a_generator_whose_pictures_both_scores_agree_on_stands_still(flow):
    velocity, batch = case_dmd2(flow)
    agreed = expecting(batch, fake=batch.real_x0)
    assert not torch.autograd.grad(dmd2(agreed).sum(), velocity)[0].any()


# The surrogate of the reward.


def make_case(flow):
    """The surrogate has the live velocity, its average the older one: two groups of two."""
    velocity = flow("fixture/v").requires_grad_()
    target = flow("fixture/v_target")
    errors = [flow(f"fixture/{name}")[:, None] - target[:, None] for name in ("v_ref", "v_old")]
    ones = torch.ones(4, 1, dtype=torch.float64)
    batch = DecoupledBatch(
        error=(velocity - target)[:, None], sigma=flow("fixture/sigma")[:, None], mask=ones.bool(),
        advantages=flow("fixture/A")[:, None], group=torch.arange(4) // 2, ref_error=errors[0],
        fast_error=errors[1],
    )  # fmt: skip
    return velocity, batch


def score_of(batch, beta=10.0):
    value = beyond_reference(batch).detach()
    rows = Summary(
        value=value, advantages=batch.advantages, mask=batch.mask, group=batch.group
    )  # fmt: skip
    return group_score(rows, beta=beta)


def test_the_surrogate_is_the_reference_one(flow):
    velocity, batch = make_case(flow)
    errors = batch.error.detach(), batch.ref_error, batch.fast_error
    own, ref, slow = (energy(error)[:, 0] for error in errors)
    close(own, flow("tdm_r1.surrogate/values"))
    close(ref, flow("tdm_r1.surrogate/ref"))
    close(slow, flow("tdm_r1.surrogate/slow"))
    close((slow - own).exp(), flow("tdm_r1.surrogate/ratio"))
    close(beyond_reference(batch).detach().square().mean(), flow("tdm_r1.surrogate/penalty"))
    score = score_of(batch)
    close(score[::2, 0], flow("tdm_r1.surrogate/group_logit"))
    for silent, name in (
        (has_gone_far(batch, clip_low=1e-3, clip_high=1e-3), "trust_detached"),
        (has_run_away(batch, farthest=0.05), "runaway_detached"),
    ):
        assert silent[:, 0].tolist() == flow(f"tdm_r1.surrogate/{name}").bool().tolist()
    loss = surrogate(batch, score)
    close(surrogate(batch, score, pull=0.0).mean(), flow("tdm_r1.surrogate/preference_loss"))
    close(loss.mean(), flow("tdm_r1.surrogate/loss"))
    close(torch.autograd.grad(loss.mean(), velocity)[0], flow("tdm_r1.surrogate/dloss_dv"))


def test_what_has_run_away_keeps_no_gradient():
    """Good samples already better than the reference by more than `farthest`, or bad ones worse."""
    error = torch.tensor([0.1, 0.9, 0.9, 0.1]).double().requires_grad_()
    ones = torch.ones(4, 1, dtype=torch.float64)
    batch = DecoupledBatch(
        error=error[:, None, None], ref_error=0.5 * ones[..., None],
        fast_error=error.detach()[:, None, None], sigma=ones, mask=ones.bool(),
        advantages=torch.tensor([1.0, 1.0, -1.0, -1.0])[:, None], group=torch.arange(4) // 2,
    )  # fmt: skip
    # <e^2> is 0.24 below the reference's, or 0.56 above it: squares of 0.0576 and 0.3136.
    for farthest, kept in ((0.05, [1, 3]), (0.1, [0, 1, 3]), (0.4, [0, 1, 2, 3])):
        loss = surrogate(batch, 0 * ones, farthest=farthest, pull=0.0).sum()
        (gradient,) = torch.autograd.grad(loss, error)
        assert gradient.nonzero()[:, 0].tolist() == kept


def test_the_generator_of_tdm_r1_is_drawn_by_three_directions(flow):
    velocity, batch = case_tdm(flow)
    own = expecting(batch, surrogate=batch.real_x0 + 0.5)
    own = replace(own, of_prompt=batch.x0.detach() * 0 + 0.1)
    (base,) = torch.autograd.grad(tdm(own).sum(), velocity, retain_graph=True)
    (whole,) = torch.autograd.grad(tdm_r1(own).sum(), velocity, retain_graph=True)
    sigma = flow("tdm/sigma_upper").item()
    by_prompt = 0.3 * 3.5 * 0.1 / distance_between(own.x0, own.real_x0)
    by_reward = 0.7 * 0.5 / distance_between(own.x0, own.networks["surrogate"].x0)
    # d loss / d x0 is minus the direction, over the two latent dimensions; d x0 / d v is -sigma.
    close(whole - base, (sigma * (by_prompt + by_reward) / 2).expand(4, 2))


# Queries.


def test_a_query_is_the_expected_picture_at_its_own_level(flow):
    x, x0 = flow("tdm/x"), flow("tdm/x") - 0.75 * flow("fixture/v")
    ends = (torch.full((4,), 0.75).double(), torch.full((4,), 0.5).double())
    for query in (anywhere, trajectory, reverse):
        at = noise_again(query, x, x0, ends, torch.arange(4))
        close(at.x - at.sigma[:, None] * at.target, x0)
        low = 0.0 if query is anywhere else 0.5
        assert ((at.sigma > low) & (at.sigma < (0.75 if query is trajectory else 1))).all()


def test_a_shift_is_uniform_before_it():
    u = torch.tensor([0.0, 0.5, 1.0]).double()
    ends = (torch.full((3,), 0.9).double(), torch.full((3,), 0.75).double())
    # At shift 3, 0.75 comes from 0.5 and 1 from 1: their middle 0.75 becomes 0.9.
    close(reverse(u, *ends, shift=3.0)[0], torch.tensor([0.75, 0.9, 1.0]).double())
    close(trajectory(u, *ends)[0], torch.tensor([0.75, 0.825, 0.9]).double())
