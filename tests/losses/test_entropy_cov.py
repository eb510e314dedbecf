"""Losses that select steps of an update: against the reference vectors, under any cut."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from every_loss import random_batch
from records import coupled_batch
from torch.testing import assert_close

from tandem import rng
from tandem.contracts import batch_statistics_of, facts_of
from tandem.losses import reduction
from tandem.losses.entropy_cov import TopEntropy, clip_cov, covariance, kl_cov, step_draws
from tandem.losses.policy import ppo
from tandem.losses.trust_region import OffPolicyMask
from tandem.metrics import own_metrics, reduce_metrics
from tandem.types import map_fields, pad_steps, take

PRECISION = {torch.float64: 1e-6, torch.float32: 1e-5}
wide = partial(clip_cov, part=0.2, between=(0.15, 5.0))
tenth = partial(kl_cov, part=0.1)
dapo = partial(ppo, clip_high=0.28)
LOSSES = {"clip_cov": wide, "kl_cov": tenth, "top_entropy": TopEntropy(loss=dapo)}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
both = pytest.mark.parametrize("dtype", PRECISION, ids=str)


def choose(loss, batch):
    with torch.no_grad():
        return batch_statistics_of(loss)(batch)


def value_and_gradient(loss, batch, statistics=None):
    statistics = choose(loss, batch) if statistics is None else statistics
    value = (loss(batch, statistics) * reduction.token_mean(batch.mask)).sum()
    return value.detach(), torch.autograd.grad(value, batch.logp)[0]


def unsure(vectors, dtype=torch.float64):
    batch = coupled_batch(vectors, dtype)
    entropy = torch.where(batch.mask, vectors["highent/H"].to(dtype), 0)
    return replace(batch, entropy=entropy)


def random_update(seed=0, rows=40):
    """Whole groups of 4, with entropies; some rows have no advantage."""
    batch = random_batch(rows=rows, seed=seed)
    entropy = torch.rand(batch.mask.shape, generator=torch.Generator().manual_seed(seed))
    quiet = batch.group[:, None] % 3 == 0
    advantages = torch.where(quiet, 0, batch.advantages)
    key = rng.key(seed, torch.arange(rows))
    return replace(batch, entropy=entropy.double() * batch.mask, advantages=advantages, key=key)


@both
@pytest.mark.parametrize(
    ("loss", "name", "steps"),
    [
        (wide, "clip_cov/lb.15_ub5_r.2", [[0, 1], [5, 3]]),
        (tenth, "kl_cov/r.1_c1", [[0, 0], [5, 2]]),
    ],
)
def test_value_gradient_and_choice_are_the_reference_ones(vectors, loss, name, steps, dtype):
    batch = coupled_batch(vectors, dtype)
    close = {"atol": PRECISION[dtype], "rtol": 0.0, "check_dtype": False}
    assert choose(loss, batch).nonzero().tolist() == steps
    value, gradient = value_and_gradient(loss, batch)
    assert_close(value, vectors[f"{name}/loss"], **close)
    assert_close(gradient, vectors[f"{name}/grad"], **close)


@both
def test_the_covariance_is_the_reference_one(vectors, dtype):
    got = covariance(coupled_batch(vectors, dtype))
    assert_close(got, vectors["cov"], atol=PRECISION[dtype], rtol=0, check_dtype=False)
    assert not got.requires_grad


@both
def test_the_steps_of_high_entropy_are_the_reference_ones(vectors, dtype):
    batch, loss = unsure(vectors, dtype), LOSSES["top_entropy"]
    kept = choose(loss, batch)
    assert torch.equal(kept, vectors["highent/mask"].bool())
    assert batch.entropy[kept].min() >= vectors["highent/threshold"].item()
    assert batch.entropy[batch.mask & ~kept].max() < vectors["highent/threshold"].item()
    value = value_and_gradient(loss, batch)[0].item()
    tolerance = {"abs": PRECISION[dtype]}
    assert value == pytest.approx(vectors["highent/loss_over_all"].item(), **tolerance)
    over_selected = value * 23 / kept.sum().item()
    assert over_selected == pytest.approx(vectors["highent/loss_over_selected"].item(), **tolerance)


@pytest.mark.parametrize("part", [0.05, 0.2, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("rows", [1, 2, 20, 40])
def test_kept_are_the_entropies_from_the_quantile_on(part, rows):
    batch = random_update(rows=rows)
    quantile = batch.entropy[batch.mask].quantile(1 - part)
    want = batch.mask & (batch.entropy >= quantile)
    assert torch.equal(choose(TopEntropy(loss=ppo, part=part), batch), want)


# The cut of the rows does not matter.


@every_loss
@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_rows_does_not_matter(loss, seed):
    batch = random_update(seed)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(choose(loss, take(batch, order)), choose(loss, batch)[order])


@every_loss
def test_longer_padding_changes_nothing(loss):
    batch = random_update()
    longer = map_fields(batch, lambda x: x if x.ndim == 1 else pad_steps(x, 11))
    assert torch.equal(choose(loss, longer)[:, :6], choose(loss, batch))
    assert not choose(loss, longer)[:, 6:].any()


@every_loss
def test_what_another_cut_does_to_the_last_bits_changes_nothing(loss):
    batch = random_update()
    noise = torch.rand(batch.mask.shape, generator=torch.Generator().manual_seed(9)).double()
    shaken = replace(batch, logp=batch.logp + 1e-9 * (noise - 0.5) * batch.mask)
    assert torch.equal(choose(loss, shaken), choose(loss, batch))


@every_loss
def test_a_row_only_needs_its_own_part_of_the_statistics(loss):
    batch = random_update()
    statistics = choose(loss, batch)
    assert statistics.any()
    for rows in ([3, 1], [5], [0, 2, 4, 39]):
        rows = torch.tensor(rows)
        alone = loss(take(batch, rows), statistics[rows])
        assert_close(alone, loss(batch, statistics)[rows], atol=1e-14, rtol=0)


@every_loss
def test_steps_outside_the_mask_and_rows_never_trained_are_not_chosen(loss):
    batch = random_update()
    never = torch.arange(40) % 4 == 1
    beside = choose(loss, replace(batch, baseline=never))
    assert not beside[never].any()
    assert not choose(loss, batch)[~batch.mask].any()
    alone = choose(loss, take(batch, (~never).nonzero()[:, 0]))
    assert alone.any()
    assert torch.equal(beside[~never], alone)


@every_loss
def test_an_update_without_a_step_chooses_none(loss):
    batch = random_update()
    empty = replace(batch, mask=torch.zeros_like(batch.mask))
    assert not choose(loss, empty).any()


@pytest.mark.parametrize(
    "loss", [partial(wide, part=0.0), partial(tenth, part=0.0)], ids=["clip_cov", "kl_cov"]
)
def test_a_part_of_zero_chooses_no_step(loss):
    assert not choose(loss, random_update()).any()


@every_loss
def test_a_row_without_advantage_moves_nothing_if_the_loss_says_so(loss):
    batch, quiet = random_update(), random_update().group % 3 == 0
    good = torch.where(quiet[:, None], 0, 3.0 * batch.mask)  # zero is far from the mean
    gradient = value_and_gradient(loss, replace(batch, advantages=good))[1]
    assert facts_of(loss).zero_at_zero_advantage == (not gradient[quiet].any())


@every_loss
def test_a_loss_reads_only_what_it_declares(loss):
    batch, names = random_update(), ("old_logp", "behaviour_logp", "ref_logp", "entropy")
    unread = replace(batch, **{name: None for name in names if name not in facts_of(loss).reads})
    assert torch.equal(choose(loss, unread), choose(loss, batch))
    assert_close(loss(unread, choose(loss, unread)), loss(batch, choose(loss, batch)))


# The random choice of Clip-Cov.


def test_clip_cov_draws_as_many_candidates_as_its_part_of_all_steps():
    batch = random_update(rows=400)
    free = partial(clip_cov, clip_low=9.0, clip_high=9.0, between=(0.2, 2.0))
    c, total = covariance(batch), int(batch.mask.sum())
    for part in (1e-6, 0.01, 0.05):
        drawn = choose(partial(free, part=part), batch)
        assert drawn.sum().item() == max(1, int(part * total))
        assert ((c > 0.2) & (c < 2.0))[drawn].all()
    everything = choose(partial(free, part=1.0), batch)
    assert torch.equal(everything, (c > 0.2) & (c < 2.0))


def test_clip_cov_leaves_clipped_steps_to_the_clip():
    batch = replace(random_batch(rows=400), key=rng.key("rows", torch.arange(400)))
    all_of_them = partial(clip_cov, part=1.0, between=(0.0, 99.0))
    drawn = choose(all_of_them, batch)
    nothing_drawn = torch.zeros_like(drawn)
    moved = value_and_gradient(all_of_them, batch, nothing_drawn)[1] != 0
    standing_out = batch.mask & (covariance(batch) > 0)
    assert torch.equal(drawn, standing_out & moved)
    assert (standing_out & ~moved).any(), "some must have been clipped"


def test_without_a_drawn_step_clip_cov_is_ppo():
    batch = random_update()
    none = torch.zeros_like(batch.mask)
    assert_close(clip_cov(batch, none, clip_high=0.3), ppo(batch, clip_high=0.3))
    all_of_them = clip_cov(batch, batch.mask)
    assert not all_of_them.any()


def test_the_lot_falls_evenly_and_anew_in_every_update():
    drawn = torch.stack([step_draws(random_update(seed), "test") for seed in range(200)])
    inside = drawn[torch.stack([random_update(seed).mask for seed in range(200)])]
    assert inside.mean().item() == pytest.approx(0.5, abs=0.01)
    assert inside.var().item() == pytest.approx(1 / 12, abs=0.005)
    one, other = (step_draws(random_update(seed, rows=400), "test") for seed in (0, 1))
    assert (one == other).double().mean() < 0.01
    by_step = drawn.mean((0, 1))
    assert_close(by_step, torch.full_like(by_step, 0.5), atol=0.02, rtol=0)


def test_the_lot_of_a_step_follows_its_row_whatever_else_stands_there():
    batch = random_update()
    drawn = step_draws(batch, "test")
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    assert torch.equal(step_draws(take(batch, order), "test"), drawn[order])
    rounded = replace(batch, logp=batch.logp.bfloat16().double(), group=batch.group + 7)
    assert torch.equal(step_draws(rounded, "test"), drawn)
    later = {
        name: torch.nn.functional.pad(getattr(batch, name), (2, 0))
        for name in ("logp", "mask", "advantages", "old_logp")
    }
    shifted = step_draws(replace(batch, entropy=None, **later), "test")[:, 2:]
    assert torch.equal(shifted[batch.mask], drawn[batch.mask])


# Their metrics.


def measure(loss, batch):
    return {
        name.removeprefix("actor/"): value
        for name, value in reduce_metrics(own_metrics(loss, batch, choose(loss, batch))).items()
    }


def test_they_report_how_much_they_chose(vectors):
    batch = unsure(vectors)
    clipped = measure(wide, batch)
    assert clipped["clip_cov_selected"] == pytest.approx(2 / 23)
    want = vectors["metric/clip_frac_active"].item()
    assert clipped["clip_frac"] == pytest.approx(want)
    moved = abs(batch.logp - batch.old_logp)
    held = measure(partial(tenth, coef=0.5), batch)
    assert held["kl_cov_selected"] == pytest.approx(2 / 23)
    want = 0.5 * (moved[0, 0] + moved[5, 2]).item() / 23
    assert held["kl_cov_penalty"] == pytest.approx(want)
    inner = reduce_metrics(own_metrics(dapo, batch))
    assert measure(LOSSES["top_entropy"], batch) == {
        name.removeprefix("actor/"): value for name, value in inner.items()
    } | {"top_entropy_kept": pytest.approx(5 / 23)}


def test_what_wraps_a_loss_declares_what_the_loss_does():
    inside = OffPolicyMask(loss=ppo, delta=0.1)
    assert facts_of(TopEntropy(loss=inside)).reads == {"old_logp", "behaviour_logp", "entropy"}
    assert facts_of(TopEntropy(loss=inside)).zero_at_zero_advantage


def test_a_wrapper_refuses_a_loss_with_statistics_and_an_empty_part():
    with pytest.raises(ValueError, match=r"set algorithm\.loss\.loss to a loss that judges"):
        TopEntropy(loss=partial(kl_cov, part=0.1))
    for part in (0.0, 1.1):
        with pytest.raises(ValueError, match="0 < part <= 1"):
            TopEntropy(loss=ppo, part=part)
