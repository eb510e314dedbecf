"""Distribution matching against its reference values."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from tandem.losses.matching import (
    continue_noise,
    distance_to_real,
    dmd2,
    fake_velocity,
    fake_x0,
    tdm,
)
from tandem.types import MatchingBatch

close = partial(assert_close, atol=1e-6, rtol=0)


def batch_of(flow, x, sigma_of_state, query, sigma, importance=None):
    """The fixture's velocities: live at the state x, the older one for the fake score."""
    velocity = flow("fixture/v").requires_grad_()
    x0 = x - sigma_of_state * velocity
    true = (query - x0.detach()) / sigma  # noise - x0, from the query itself
    real, fake = (query - sigma * flow(f"fixture/{name}") for name in ("v_ref", "v_old"))
    ones = torch.ones(4, 1, dtype=torch.float64)
    batch = MatchingBatch(
        x0=x0[:, None], real_x0=real[:, None], fake_x0=fake[:, None],
        fake_error=(flow("fixture/v_old") - true)[:, None], sigma=sigma * ones,
        importance=ones if importance is None else importance[:, None], advantages=0 * ones,
        mask=ones.bool(), group=torch.arange(4) // 2,
    )  # fmt: skip
    return velocity, batch


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
    close(distance_to_real(batch)[:, 0], flow("dmd2/normaliser"))
    loss = dmd2(batch).mean()
    close(loss.detach(), flow("dmd2/generator_loss"))
    close(torch.autograd.grad(loss, velocity)[0], flow("dmd2/dloss_dv"))
    close(fake_velocity(batch).mean(), flow("dmd2/fake_loss"))


def test_tdm_is_the_reference_one(flow):
    velocity, batch = case_tdm(flow)
    loss = tdm(batch).mean()
    close(loss.detach(), flow("tdm/generator_huber"))
    (gradient,) = torch.autograd.grad(loss, velocity, retain_graph=True)
    close(gradient, flow("tdm/dhuber_dv"))
    close(tdm(batch, huber=0.0).mean().detach(), flow("tdm/generator_half_sq"))
    assert flow("tdm/snr").item() == pytest.approx((0.4 / 0.6) ** 2, abs=1e-9)
    close(fake_x0(batch).mean(), flow("tdm/fake_loss"))


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
    agreed = replace(batch, fake_x0=batch.real_x0)
    assert not torch.autograd.grad(dmd2(agreed).sum(), velocity)[0].any()
