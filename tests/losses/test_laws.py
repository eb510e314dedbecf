"""Laws of every policy loss: rows are independent, padding has no effect, fresh samples agree."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from every_loss import LOSSES, PULLED, random_batch
from records import coupled_batch
from torch.testing import assert_close

from tandem.contracts import facts_of
from tandem.losses import reduction
from tandem.losses.policy import clipped_surrogate, ppo
from tandem.losses.sequence import gspo, gspo_token
from tandem.metrics import merge_metrics, own_metrics, reduce_metrics
from tandem.types import map_fields, pad_steps, take

every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
CUTS = [[[3, 1], [5], [0, 2, 4]], [[0], [5, 4, 3, 2, 1]]]


def gradient_of(loss, batch, weigh=reduction.token_mean):
    return torch.autograd.grad((loss(batch) * weigh(batch.mask)).sum(), batch.logp)[0]


@every_loss
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_a_row_does_not_know_which_others_it_is_cut_with(vectors, loss, cut):
    batch = coupled_batch(vectors)
    for rows in map(torch.tensor, cut):
        assert_close(loss(take(batch, rows)), loss(batch)[rows], atol=1e-14, rtol=0)


@every_loss
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_metrics_are_the_same_however_the_rows_are_cut(vectors, loss, cut):
    batch, parts = coupled_batch(vectors), {}
    for rows in cut:
        merge_metrics(parts, own_metrics(loss, take(batch, torch.tensor(rows))))
    assert reduce_metrics(parts) == pytest.approx(
        reduce_metrics(own_metrics(loss, batch)), abs=1e-12
    )


@every_loss
def test_longer_padding_changes_neither_value_nor_gradient_nor_metric(vectors, loss):
    batch = coupled_batch(vectors)
    longer = map_fields(batch, lambda x: x if x.ndim == 1 else pad_steps(x, 9))
    assert_close(loss(longer)[:, :5], loss(batch), atol=1e-15, rtol=0)
    assert_close(gradient_of(loss, longer)[:, :5], gradient_of(loss, batch), atol=1e-15, rtol=0)
    assert reduce_metrics(own_metrics(loss, longer)) == pytest.approx(
        reduce_metrics(own_metrics(loss, batch))
    )


@every_loss
def test_no_gradient_reaches_what_stands_outside_the_mask(loss):
    batch = random_batch()
    for weigh in (reduction.token_mean, reduction.sequence_sum):
        assert not gradient_of(loss, batch, weigh)[~batch.mask].any()


@pytest.mark.parametrize("name", LOSSES)
def test_a_row_without_advantage_moves_nothing_if_the_loss_says_so(name):
    loss, batch = LOSSES[name], random_batch()
    quiet = replace(batch, advantages=torch.where(batch.group[:, None] < 5, 0, batch.advantages))
    value, gradient = loss(quiet)[:20], gradient_of(loss, quiet)[:20]
    assert facts_of(loss).zero_at_zero_advantage == (name not in PULLED)
    assert bool(value.any()) == bool(gradient.any()) == (name in PULLED)


FRESH_VALUES = {  # llm_math.md, section 2: equal gradients, unequal values
    "reinforce": 0.086728, "ppo": -0.058443, "dapo": -0.058443, "dual_clip": -0.058443,
    "cispo": 0.086728, "dro": 0.086728, "sapo": -0.151261, "vespo": 0.086728, "dppo": 0.086728,
    "dppo_kl": 0.086728, "dppo_pulled": -0.058443, "opsm": -0.058443,
    "cfpo": -0.058443, "drpo": -0.058443, "topr": 0.086728, "fipo": -0.058443,
}  # fmt: skip


def fresh(batch):
    logp = batch.old_logp.clone().requires_grad_()
    return replace(batch, logp=logp, behaviour_logp=batch.old_logp)


@pytest.mark.parametrize(("name", "value"), FRESH_VALUES.items())
def test_on_fresh_samples_every_gradient_is_the_policy_gradient(vectors, name, value):
    batch, weight = fresh(coupled_batch(vectors)), reduction.token_mean(vectors["in/M"].bool())
    assert (LOSSES[name](batch) * weight).sum().item() == pytest.approx(value, abs=1e-6)
    assert_close(gradient_of(LOSSES[name], batch), -batch.advantages * weight)


@pytest.mark.parametrize("name", ["gspo", "gspo_token", "gmpo", "sapo", "vespo"])
def test_on_fresh_samples_a_whole_one_has_the_gradient_of_its_steps(vectors, name):
    batch = fresh(coupled_batch(vectors))
    got, want = (gradient_of(loss, batch, reduction.sequence_mean) for loss in (LOSSES[name], ppo))
    assert_close(got, want)


def test_gspo_token_is_gspo_while_a_sample_has_one_advantage():
    for seed in range(5):
        batch = random_batch(seed=seed)
        for numbers in ({}, {"clip_low": 0.1, "clip_high": 0.2}):
            pair = [partial(loss, **numbers) for loss in (gspo, gspo_token)]
            value, by_token = (loss(batch) for loss in pair)
            assert_close(by_token, value)
            whole, by_token = (gradient_of(loss, batch, reduction.sequence_mean) for loss in pair)
            assert_close(by_token, whole)
            assert 0 < whole.any(1).double().mean() < 1, "some samples must be clipped, not all"


def test_dual_clip_and_two_sided_clip_are_one_function():
    def dual(r, a, c):  # arXiv:1707.06347 eq. 7 with a floor under the loss of bad steps
        plain = max(-a * r, -a * min(max(r, 0.8), 1.28))
        return min(plain, -c * a) if a < 0 else plain

    def two_sided(r, a, delta):
        return max(-a * min(r, delta), -a * min(max(r, 0.8), 1.28))

    batch = random_batch(spread=1.5)
    ratio, advantages = (batch.logp - batch.old_logp).detach().exp(), batch.advantages
    for most in (1.3, 3.0, 4.0):
        got = -clipped_surrogate(ratio, advantages, low=0.2, high=0.28, most=most)
        pairs = list(zip(ratio.flatten().tolist(), advantages.flatten().tolist(), strict=True))
        for oracle in (dual, two_sided):
            want = torch.tensor([oracle(r, a, most) for r, a in pairs], dtype=torch.float64)
            assert_close(got.flatten(), want)


@every_loss
def test_a_policy_that_ran_away_still_has_a_finite_loss_and_gradient(loss):
    far = torch.tensor([[-400.0, -1.0], [-1.0, -300.0], [-1.0, -1.0]])
    batch = replace(
        take(random_batch(steps=2), torch.arange(3)),
        logp=far.clone().requires_grad_(),
        old_logp=far.flip(1),
        behaviour_logp=far.flip(0),
        advantages=torch.tensor([[1.0], [-1.0], [2.0]]).expand(3, 2),
        mask=torch.ones(3, 2, dtype=torch.bool),
    )
    assert loss(batch).isfinite().all()
    assert gradient_of(loss, batch).isfinite().all()


@every_loss
def test_a_loss_reads_only_what_it_declares(vectors, loss):
    batch, names = coupled_batch(vectors), ("old_logp", "behaviour_logp", "ref_logp", "entropy")
    unread = {name: None for name in names if name not in facts_of(loss).reads}
    assert_close(loss(replace(batch, **unread)), loss(batch), atol=0, rtol=0)
