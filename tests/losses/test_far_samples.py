"""Losses for samples far from the policy, against their reference values."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from every_loss import random_batch
from records import coupled_batch
from torch.testing import assert_close

from tandem.advantages.baselines import raw_reward
from tandem.losses.future_kl import fipo, future_kl, weight_of
from tandem.losses.off_policy import find_kept, m2po, taper, topr
from tandem.losses.policy import ppo, reinforce
from tandem.losses.soft_clip import cfpo, drpo
from tandem.metrics import own_metrics, reduce_metrics
from tandem.types import CoupledBatch, Rollout, Scores

close = partial(assert_close, atol=1e-6, rtol=0)


def batch_of(logp, advantages, **others):
    """Rows of one step from 1-D tensors, or of several."""
    wide = {name: x if x.dim() == 2 else x[:, None] for name, x in others.items()}
    logp = logp.clone().requires_grad_()
    mask = wide.pop("mask", torch.ones_like(logp if logp.dim() == 2 else logp[:, None])).bool()
    step = logp if logp.dim() == 2 else logp[:, None]
    advantages = advantages if advantages.dim() == 2 else advantages[:, None]
    group = torch.zeros(len(mask), dtype=torch.int64)
    return logp, CoupledBatch(logp=step, advantages=advantages, mask=mask, group=group, **wide)


def check(loss, logp, value, gradient):
    close(loss.detach().view_as(value), value)
    close(torch.autograd.grad(loss.sum(), logp)[0].view_as(gradient), gradient)


def test_cfpo_is_the_reference_one_and_turns_where_a_clip_would_end(axis):
    read = {name: axis(f"cfpo/{name}") for name in ("logp", "advantages", "old_logp")}
    logp, batch = batch_of(**read)
    loss = cfpo(batch, width=axis("cfpo/eps").item())
    check(loss, logp, axis("cfpo/loss"), axis("cfpo/grad_logp"))
    advantages = torch.tensor([1.0, -2.0], dtype=torch.float64)
    logp, batch = batch_of(axis("cfpo/turning_ratio").log(), advantages, old_logp=torch.zeros(2))
    assert_close(torch.autograd.grad(cfpo(batch).sum(), logp)[0], torch.zeros_like(logp))


@pytest.mark.parametrize("delta", ["12.5", "0.15"])
def test_drpo_is_the_reference_one(axis, delta):
    case = f"drpo_delta_{delta}"
    read = {name: axis(f"{case}/{name}") for name in ("logp", "advantages", "behaviour_logp")}
    logp, batch = batch_of(**read)
    check(
        drpo(batch, delta=axis(f"{case}/delta").item()),
        logp, axis(f"{case}/loss"), axis(f"{case}/grad_logp"),
    )  # fmt: skip
    ratio = (batch.logp - batch.behaviour_logp).exp().detach()[:, 0]
    by_weight = -batch.advantages[:, 0] * ratio * axis(f"{case}/weight")
    close(by_weight, axis(f"{case}/grad_logp"))


def test_drpo_of_a_rare_token_is_the_plain_policy_gradient():
    old = torch.full((4,), -12.0, dtype=torch.float64)
    moved = torch.tensor([-1.0, 0.5, 1.0, 2.0], dtype=torch.float64)
    logp, batch = batch_of(old + moved, moved.sign(), behaviour_logp=old)
    (gradient,) = torch.autograd.grad(drpo(batch).sum(), logp)
    assert_close(gradient, -moved.sign() * moved.exp(), atol=1e-4, rtol=0)


def test_topr_is_the_reference_one_and_its_ratio_is_that_of_the_sample(axis):
    names = ("sequence_logp", "behaviour_sequence_logp", "reward")
    total, sampler, score = (axis(f"topr/{name}") for name in names)
    logp, batch = batch_of(total, score, behaviour_logp=sampler)
    check(topr(batch), logp, axis("topr/loss"), axis("topr/grad_sequence_logp"))
    close(taper(batch)[:, 0], axis("topr/weight"))
    parts = torch.tensor([0.1, 0.3, 0.6], dtype=torch.float64)
    _, whole = batch_of(total[:, None] * parts, score[:, None].expand(-1, 3),
                        behaviour_logp=sampler[:, None] * parts)  # fmt: skip
    close(taper(whole), axis("topr/weight")[:, None].expand(-1, 3))
    close(topr(whole).sum(1).detach(), axis("topr/loss"))
    bad = taper(batch)[score < 0].mean().item()
    assert reduce_metrics(own_metrics(topr, batch))["actor/taper"] == pytest.approx(bad)


def test_raft_is_ppo_on_the_good_samples(axis):
    names = ("logp", "old_logp", "reward01")
    logp, old, score = (axis(f"raft_pp/{name}") for name in names)
    mask = torch.ones(4, 1, dtype=torch.bool)
    rollout = Rollout(
        sample=None, mask=mask, group=torch.tensor([0, 0, 1, 1]), outputs=tuple("abcd"), prompts=(),
        truncated=torch.zeros(4, dtype=torch.bool), length=torch.ones(4, dtype=torch.int64),
    )  # fmt: skip
    scores = Scores(total=score, parts={}, scored=torch.ones(4, dtype=torch.bool))
    advantages = raw_reward(scores, rollout, floor=0.0)
    assert advantages[:, 0].tolist() == score.tolist()
    assert raw_reward(scores, rollout, baseline=0.5)[:, 0].tolist() == (score - 0.5).tolist()
    assert raw_reward(scores, rollout, baseline=0.5, floor=-0.2).min() == -0.2
    logp, batch = batch_of(logp, advantages, old_logp=old)
    clip = axis("raft_pp/clip").item()
    loss = ppo(batch, clip_low=clip, clip_high=clip)
    check(loss, logp, axis("raft_pp/loss"), axis("raft_pp/grad_logp"))


def test_m2po_drops_the_farthest_harmful_steps_of_the_reference(axis):
    moved, advantages = axis("m2po/log_ratio"), axis("m2po/advantages")
    logp, batch = batch_of(moved, advantages, old_logp=torch.zeros_like(moved))
    kept = find_kept(batch, spread=axis("m2po/tau").sqrt().item())
    assert kept[:, 0].tolist() == axis("m2po/keep_harmful_only").bool().tolist()
    check(m2po(batch, kept), logp, axis("m2po/loss"), axis("m2po/grad_log_ratio"))


@pytest.mark.parametrize("seed", range(5))
def test_m2po_keeps_as_many_steps_as_it_can(seed):
    """By trying every number of dropped steps."""
    batch, spread = random_batch(seed=seed), 0.3
    moved = (batch.logp - batch.old_logp).detach()
    harmful = batch.mask & (moved * batch.advantages > 0)
    squares = sorted(moved[harmful].square().tolist())
    fits = [n for n in range(1, len(squares) + 1) if sum(squares[:n]) / n <= spread**2]
    dropped = ~find_kept(batch, spread=spread)
    assert int(dropped.sum()) == len(squares) - max(fits, default=0) > 0
    assert not (dropped & ~harmful).any()
    assert moved[dropped].abs().min() >= moved[harmful & ~dropped].abs().max()


def fipo_batch(axis):
    read = {name: axis(f"fipo/{name}") for name in ("logp", "advantages", "old_logp", "mask")}
    inside = {name: torch.where(read["mask"].bool(), x, 0) for name, x in read.items()}
    return batch_of(**inside)


NUMBERS = {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0, "safety": 10.0}


@pytest.mark.parametrize(("side", "low"), [("high_only", 0.0), ("both_sides", 0.2)])
def test_fipo_is_the_reference_one(axis, side, low):
    logp, batch = fipo_batch(axis)
    assert {name: axis(f"fipo/{name}").item() for name in NUMBERS} == NUMBERS  # the defaults
    how = {"half_life": 32.0, "ratio_max": 3.0}
    close(future_kl(batch, **how), axis("fipo/future_kl"))
    bounds = {"weight_low": low, "weight_high": 0.2, "safety": 10.0}
    weight = torch.where(batch.mask, weight_of(batch, **how, **bounds), 1)
    close(weight, axis(f"fipo/weight_{side}"))
    loss = fipo(batch, weight_low=low)
    close(loss.detach(), axis(f"fipo/loss_{side}"))
    (gradient,) = torch.autograd.grad(loss.sum(), logp)
    if side == "high_only":
        close(gradient, axis("fipo/grad_logp_high_only"))


def test_a_later_step_counts_half_after_a_half_life(axis):
    assert pytest.approx(axis("fipo/gamma").item(), abs=1e-12) == 2 ** (-1 / 32)
    old = torch.zeros(1, 33, dtype=torch.float64)
    logp = old.clone()
    logp[0, -1] = 0.5
    _, batch = batch_of(logp, torch.ones_like(old), old_logp=old)
    assert future_kl(batch, half_life=32.0, ratio_max=3.0)[0, 0].item() == pytest.approx(0.25)


def test_fipo_leaves_out_what_a_dual_clip_held_twice_and_never_raises_a_lost_step():
    old = torch.full((2, 3), -8.0, dtype=torch.float64)
    logp = old + torch.tensor([[2.0, 2.0, 0.1], [2.5, 0.1, 0.1]], dtype=torch.float64)
    _, batch = batch_of(logp, -torch.ones_like(old), old_logp=old)
    value = fipo(batch, ratio_max=3.0, safety=10.0)
    assert value[0].tolist() == [0, 0, 0]
    assert value[1, 0].item() == pytest.approx(3.0), "its weight is 1, and the dual clip holds it"
    assert value[1, 2].item() == pytest.approx(torch.tensor(0.2).exp().item(), abs=1e-6)


@pytest.mark.parametrize("loss", [cfpo, drpo, fipo, m2po], ids=lambda loss: loss.__name__)
def test_at_ratio_1_the_gradient_is_that_of_reinforce(vectors, loss):
    batch = coupled_batch(vectors)
    old = batch.logp.detach()
    batch = replace(batch, old_logp=old, behaviour_logp=old)
    given = (batch, find_kept(batch, spread=0.2)) if loss is m2po else (batch,)
    got, want = (
        torch.autograd.grad((value * batch.mask).sum(), batch.logp)[0]
        for value in (loss(*given), reinforce(batch))
    )
    assert_close(got, want)
