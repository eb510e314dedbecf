"""Losses and advantages of masked-diffusion text, against their reference values."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from tandem.advantages.tilted import wd1
from tandem.losses.bounds import spg
from tandem.losses.kl import k2_sequence
from tandem.losses.policy import nll
from tandem.losses.preference import dpo
from tandem.losses.reduction import sequence_mean, sequence_sum
from tandem.losses.sequence import gspo
from tandem.policies.masked.records import States
from tandem.types import CoupledBatch, Rollout, Scores

close = partial(assert_close, atol=1e-6, rtol=0)
gradient = torch.autograd.grad


def split(values, length):
    """A bound per row, split unevenly over its positions: [B] -> [B, length]."""
    shares = torch.arange(1, length + 1, dtype=torch.float64)
    return values[:, None] * shares / shares.sum()


def batch_of(logp, advantages, **others):
    mask = torch.ones(logp.shape, dtype=torch.bool)
    group = torch.zeros(len(logp), dtype=torch.int64)
    return CoupledBatch(logp=logp, advantages=advantages, mask=mask, group=group, **others)


def espo_rows(axis):
    length = int(axis("espo/length"))
    elbo = axis("espo/elbo").requires_grad_()
    batch = batch_of(
        split(elbo, length), axis("espo/advantages")[:, None].expand(-1, length),
        old_logp=split(axis("espo/old_elbo"), length),
        ref_logp=split(axis("espo/ref_elbo"), length),
    )  # fmt: skip
    return elbo, batch


def test_espo_is_gspo_on_a_bound_however_it_is_split(axis):
    elbo, batch = espo_rows(axis)
    clip = {name: float(axis(f"espo/{name}")) for name in ("clip_low", "clip_high")}
    ratio = ((batch.logp - batch.old_logp).sum(1) / axis("espo/length")).exp()
    close(ratio, axis("espo/ratio"))
    loss = gspo(batch, **clip)
    close(loss[:, 0], axis("espo/loss_rows"))
    whole = (loss * sequence_mean(batch.mask)).sum()
    close(whole, axis("espo/loss"))
    close(gradient(whole, elbo, retain_graph=True)[0], axis("espo/grad_elbo"))
    kl = k2_sequence(batch)
    close(kl[:, 0], axis("espo/kl_rows"))
    both = ((loss + axis("espo/kl_coef") * kl) * sequence_mean(batch.mask)).sum()
    close(both, axis("espo/loss_with_kl"))
    close(gradient(both, elbo)[0], axis("espo/grad_elbo_with_kl"))


def test_the_kl_of_a_bound_is_that_of_the_whole_difference(axis):
    length = int(axis("k2_of_elbo/length"))
    elbo = axis("k2_of_elbo/elbo").requires_grad_()
    batch = batch_of(
        split(elbo, length), torch.zeros(4, length),
        ref_logp=split(axis("k2_of_elbo/ref_elbo"), length),
    )  # fmt: skip
    kl = k2_sequence(batch)
    close(kl[:, 0], axis("k2_of_elbo/per_row"))
    close(gradient(kl[:, 0].sum(), elbo)[0], axis("k2_of_elbo/grad"))


def test_wd1_weighs_likelihoods_by_two_softmaxes(axis):
    groups = axis("wd1/groups", torch.int64)
    group = torch.arange(len(groups)).repeat_interleave(groups.shape[1])
    score = axis("wd1/advantages")
    mask = torch.ones(len(score), 1, dtype=torch.bool)
    rollout = rollout_of(mask, group)
    scores = Scores(total=score, parts={"r": score}, scored=mask[:, 0])
    centred = score - torch.stack([score[row].mean() for row in groups])[group]
    psi = float(axis("wd1/psi"))
    advantages = wd1(scores, rollout, psi=psi)
    plain = advantages[:, 0] / groups.shape[1]
    assert centred.abs().max() > 0
    close(plain, axis("wd1/weight_positive") - axis("wd1/weight_negative"))
    close(plain, axis("wd1/advantage_for_reinforce"))
    logp = axis("wd1/sequence_logp").requires_grad_()
    loss = (nll(batch_of(logp[:, None], advantages)) * sequence_sum(mask)).sum()
    close(loss, axis("wd1/loss"))
    close(gradient(loss, logp)[0], axis("wd1/grad_sequence_logp"))


def rollout_of(mask, group):
    return Rollout(
        sample=None, outputs=("",) * len(mask), prompts=(None,) * len(mask), mask=mask, group=group,
        length=mask.sum(1), truncated=~mask[:, 0],
    )  # fmt: skip


def test_wd1_leaves_out_what_has_no_score_and_a_group_that_ties():
    mask = torch.ones(6, 2, dtype=torch.bool)
    rollout = rollout_of(mask, torch.tensor([0, 0, 0, 1, 1, 1]))
    total = torch.tensor([1.0, 0.0, 9.0, 2.0, 2.0, 2.0])
    scored = torch.tensor([True, True, False, True, True, True])
    advantages = wd1(Scores(total=total, parts={"r": total}, scored=scored), rollout)
    assert not advantages[2:].any()
    tilt = torch.tensor(0.5).exp() / (torch.tensor(0.5).exp() + torch.tensor(-0.5).exp())
    assert_close(advantages[0], (2 * (2 * tilt - 1)).expand(2))
    assert_close(advantages[0], -advantages[1])


@pytest.mark.parametrize("side", ["positive", "negative"])
def test_spg_pushes_good_answers_from_below_and_bad_ones_from_above(axis, side):
    logits = axis("spg/logits_per_state").requires_grad_()
    masks, answer = axis("spg/masks", torch.bool), axis("spg/answer_ids", torch.int64)
    length = masks.shape[1]
    share = length / masks.sum(1, keepdim=True)
    states = States(
        row=torch.zeros(2).long(), hidden=masks, weight=masks * share.double() / 2, count=2
    )
    said = logits.log_softmax(-1).gather(-1, answer.expand(masks.shape)[..., None])[..., 0]
    free = torch.ones(1, length, dtype=torch.bool)
    upper = states.upper_values(said, free, beta=float(axis("spg/beta")))
    advantage = axis(f"spg/advantage_{side}").expand(1, length)
    batch = batch_of(states.values(said, 1), advantage, upper_logp=upper)
    close(batch.logp.mean(), axis("spg/lower_mean_per_token"))
    close(upper.mean(), axis("spg/upper_mean_per_token"))
    loss = spg(batch, omega=float(axis("spg/omega")))
    close(loss[0, 0], axis(f"spg/loss_{side}"))
    close(gradient(loss[0, 0], logits)[0], axis(f"spg/grad_logits_{side}"))


def test_an_upper_bound_of_positions_that_no_state_hides_is_0_and_has_no_gradient():
    hidden = torch.tensor([[True, False, False]])
    said = torch.tensor([[-1.0, -2.0, -3.0]], requires_grad=True)
    states = States(row=torch.zeros(1).long(), hidden=hidden, weight=3.0 * hidden, count=1)
    free = torch.tensor([[True, True, True], [True, False, False]])
    upper = states.upper_values(said, free, beta=1.5)
    assert not upper[1].any() and not upper[0, 1:].any()
    assert gradient(upper.sum(), said)[0].isfinite().all()


def test_vrpo_is_dpo_on_sums_of_a_bound(axis):
    read = {
        name: axis(f"vrpo_dpo/{name}")
        for name in ("chosen", "rejected", "ref_chosen", "ref_rejected")
    }
    rows = torch.stack([read["chosen"], read["rejected"]])
    refs = torch.stack([read["ref_chosen"], read["ref_rejected"]])
    advantages = torch.tensor([1.0, -1.0])[:, None].expand(2, 5)
    batch = batch_of(split(rows, 5), advantages, ref_logp=split(refs, 5))
    beta = float(axis("vrpo_dpo/beta"))
    apart = (rows - refs) * advantages[:, 0]
    close(beta * apart.sum(), axis("vrpo_dpo/margin"))
    loss = (dpo(batch, beta=beta) * sequence_mean(batch.mask)).sum()
    close(loss, axis("vrpo_dpo/loss"))
