"""The laws of every loss on velocity errors, under any cut, order or padding of the rows."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from errors import mean_loss, random_errors, statistics_of
from torch.testing import assert_close

from tandem.contracts import facts_of
from tandem.losses import kl, reduction
from tandem.losses.decoupled import dgpo, dgpo_fast, nft
from tandem.losses.decoupled_centred import crd, cross_entropy, of_update, two_sided
from tandem.losses.distillation import distillation, velocity, x0, xt
from tandem.metrics import merge_metrics, own_metrics, reduce_metrics
from tandem.types import map_fields, pad_steps, take

POLICY = {
    "nft": nft,
    "nft_short": partial(nft, beta=0.1),
    "dgpo": partial(dgpo, beta=10.0),
    "dgpo_fast": partial(dgpo_fast, beta=10.0, clip_low=1e-3, clip_high=1e-3),
    "crd": crd,
    "crd_plain": partial(crd, adaptive=False),
    "crd_two_sided": partial(crd, tilt=partial(two_sided, temperature=0.05)),
    "crd_bce": partial(crd, fit=cross_entropy),
    "crd_update": partial(crd, centre=of_update),
    "distillation": partial(distillation, target=velocity),
    "distillation_x0": partial(distillation, target=x0),
    "distillation_xt": partial(distillation, target=xt, self_normalize=True),
}
DISTANCES = {
    "regressed": kl.regressed,
    "regressed_elbo": kl.regressed_elbo,
    "reward_adaptive": kl.reward_adaptive,
    "to_ema": kl.to_ema,
}
LOSSES = POLICY | DISTANCES
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
CUTS = [[[5, 1, 2], [0], [7, 23, *range(8, 23)], [3, 4, 6]], [[i] for i in range(24)]]


def gradient_of(loss, batch):
    return torch.autograd.grad(mean_loss(loss, batch), batch.error)[0]


def rows_of(statistics, rows):
    return tuple(x[rows] for x in statistics)


@every_loss
@pytest.mark.parametrize("cut", CUTS, ids=["uneven", "rows"])
def test_every_cut_gives_the_value_the_gradient_and_the_metrics_of_the_whole(loss, cut):
    batch = random_errors()
    statistics, weight = statistics_of(loss, batch), reduction.sequence_mean(batch.mask)
    value, gradient, measured = 0.0, torch.zeros_like(batch.error), {}
    for rows in map(torch.tensor, cut):
        part, own = take(batch, rows), rows_of(statistics, rows)
        share = (loss(part, *own) * weight[rows]).sum()
        value += share.detach()
        gradient += torch.autograd.grad(share, batch.error)[0]
        merge_metrics(measured, own_metrics(loss, part, *own))
    assert_close(value, mean_loss(loss, batch).detach(), atol=1e-13, rtol=1e-12)
    assert_close(gradient, gradient_of(loss, batch), atol=1e-15, rtol=1e-12)
    whole = reduce_metrics(own_metrics(loss, batch, *statistics))
    assert reduce_metrics(measured) == pytest.approx(whole, rel=1e-9, abs=1e-12)
    assert not facts_of(loss).whole_groups


@every_loss
def test_neither_the_order_of_rows_nor_the_names_of_groups_matter(loss):
    batch = random_errors()
    order = torch.randperm(24, generator=torch.Generator().manual_seed(1))
    moved = take(batch, order)
    moved = replace(moved, group=(1009 * (moved.group + 3)) % 31)
    assert_close(mean_loss(loss, moved), mean_loss(loss, batch))
    got = torch.autograd.grad(mean_loss(loss, moved), batch.error)[0]
    assert_close(got, gradient_of(loss, batch), atol=1e-15, rtol=1e-10)


@every_loss
def test_levels_outside_the_mask_give_and_get_nothing(loss):
    batch = random_errors()
    assert not gradient_of(loss, batch)[~batch.mask].any()
    assert not loss(batch, *statistics_of(loss, batch))[~batch.mask].any()
    wider = map_fields(batch, lambda x: x if x.ndim == 1 else pad_steps(x, 5))
    assert_close(mean_loss(loss, wider), mean_loss(loss, batch), atol=1e-15, rtol=1e-12)
    padded = torch.autograd.grad(mean_loss(loss, wider), batch.error)[0]
    assert_close(padded, gradient_of(loss, batch), atol=1e-15, rtol=1e-12)
    got, want = (
        reduce_metrics(own_metrics(loss, x, *statistics_of(loss, x))) for x in (wider, batch)
    )
    assert got == pytest.approx(want)


@pytest.mark.parametrize("name", LOSSES)
def test_a_row_without_advantage_adds_nothing_if_the_loss_says_so(name):
    """Away from the sampling policy; the other losses do add something."""
    loss, batch = LOSSES[name], random_errors()
    quiet = (batch.advantages == 0).all(1)
    assert quiet.sum() == 4
    value, gradient = (
        loss(batch, *statistics_of(loss, batch))[quiet],
        gradient_of(loss, batch)[quiet],
    )
    assert facts_of(loss).zero_at_zero_advantage == name.startswith("dgpo")
    assert bool(value.any()) == bool(gradient.any()) == (not facts_of(loss).zero_at_zero_advantage)


@every_loss
def test_a_loss_reads_what_it_declares_and_nothing_else(loss):
    """Undeclared fields are missing in a run."""
    batch = random_errors()
    names = ("old_error", "ref_error", "fast_error", "velocity_gain", "std")
    unread = {name: None for name in names if name not in facts_of(loss).reads}
    bare = replace(batch, **unread)
    assert_close(mean_loss(loss, bare), mean_loss(loss, batch), atol=0, rtol=0)
    own_metrics(loss, bare, *statistics_of(loss, bare))
    assert facts_of(loss).on_errors
    for name in facts_of(loss).reads:
        if name in ("velocity_gain", "std"):
            continue  # one target of distillation reads them
        with pytest.raises((TypeError, AttributeError)):
            mean_loss(loss, replace(batch, **{name: None}))


@every_loss
def test_single_precision_is_enough(loss):
    batch = random_errors()
    single = map_fields(batch, lambda x: x.float() if x.is_floating_point() else x)
    single = replace(single, error=single.error.detach().requires_grad_())
    want = gradient_of(loss, batch)
    got = gradient_of(loss, single).double()
    assert_close(got, want, atol=1e-4 * want.abs().max().item(), rtol=1e-3)


@every_loss
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1e4])
def test_a_policy_that_knows_all_or_nothing_has_finite_gradients(loss, scale):
    batch = random_errors(dtype=torch.float32)
    far = replace(batch, error=(scale * batch.error).detach().requires_grad_())
    assert loss(far, *statistics_of(loss, far)).isfinite().all()
    assert torch.autograd.grad(mean_loss(loss, far), far.error)[0].isfinite().all()
