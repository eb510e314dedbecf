"""Policy losses against the reference vectors, and their laws."""

from functools import partial

import pytest
import torch
from records import coupled_batch
from torch.testing import assert_close

from tandem.contracts import facts_of
from tandem.losses import reduction
from tandem.losses.policy import clipped_surrogate, nll, ppo, reinforce

PRECISION = {torch.float64: 1e-6, torch.float32: 1e-5}
drgrpo_length = partial(reduction.constant_length, length=8)
five = partial(reduction.constant_length, length=5)
VECTORS = [
    (ppo, reduction.token_mean, "ppo/token-mean"),
    (ppo, reduction.sequence_sum, "ppo/seq-mean-token-sum"),
    (ppo, reduction.sequence_mean, "ppo/seq-mean-token-mean"),
    (ppo, five, "ppo/seq-mean-token-sum-norm"),
    (partial(ppo, clip_low=0.2, clip_high=0.28), reduction.token_mean, "dapo"),
    (reinforce, reduction.token_mean, "reinforce/token-mean"),
    (reinforce, reduction.sequence_sum, "reinforce/seq-sum"),
]


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize(("loss", "weigh", "name"), VECTORS, ids=[name for *_, name in VECTORS])
def test_value_and_gradient_are_the_reference_ones(vectors, loss, weigh, name, dtype):
    batch = coupled_batch(vectors, dtype)
    value = (loss(batch) * weigh(batch.mask)).sum()
    (gradient,) = torch.autograd.grad(value, batch.logp)
    close = {"atol": PRECISION[dtype], "rtol": 0.0, "check_dtype": False}
    assert_close(value.detach(), vectors[f"{name}/loss"], **close)
    assert_close(gradient, vectors[f"{name}/grad"], **close)


def test_dr_grpo_is_ppo_without_std_over_a_constant_length(vectors):
    batch = coupled_batch(vectors)
    advantages = vectors["grpo/nostd"][:, None] * batch.mask
    batch = type(batch)(
        logp=batch.logp,
        old_logp=batch.old_logp,
        advantages=advantages,
        mask=batch.mask,
        group=batch.group,
    )
    value = (ppo(batch) * drgrpo_length(batch.mask)).sum()
    (gradient,) = torch.autograd.grad(value, batch.logp)
    assert_close(value.detach(), vectors["drgrpo/loss"], atol=1e-6, rtol=0)
    assert_close(gradient, vectors["drgrpo/grad"], atol=1e-6, rtol=0)


def test_rloo_sums_over_the_steps_of_a_sample(vectors):
    batch = coupled_batch(vectors)
    advantages = vectors["rloo"][:, None] * batch.mask
    value = -(batch.logp * advantages * reduction.sequence_sum(batch.mask)).sum()
    ours = reinforce(
        type(batch)(logp=batch.logp, advantages=advantages, mask=batch.mask, group=batch.group)
    )
    assert_close((ours * reduction.sequence_sum(batch.mask)).sum(), value)
    assert_close(value.detach(), vectors["rloo/reinforce_seqsum/loss"], atol=1e-6, rtol=0)


def test_sft_is_the_token_mean_of_the_negative_log_likelihood(vectors):
    batch = coupled_batch(vectors)
    shown = type(batch)(
        logp=batch.logp, advantages=batch.mask.double(), mask=batch.mask, group=batch.group
    )
    value = (nll(shown) * reduction.token_mean(batch.mask)).sum()
    assert_close(value.detach(), vectors["sft/loss"], atol=1e-6, rtol=0)


def test_a_bad_step_that_got_twice_as_likely_is_not_hidden_by_the_clip():
    two, bad = torch.tensor([2.0]), torch.tensor([-1.0])
    assert_close(clipped_surrogate(two, bad, low=0.2, high=0.2), torch.tensor([-2.0]))


def test_clipping_matches_the_paper_case_by_case():
    def oracle(r, a):  # arXiv:1707.06347 fig. 1, with two clip numbers
        return min(r, 1.28) * a if a > 0 else max(r, 0.8) * a

    generator = torch.Generator().manual_seed(0)
    log_ratio, advantages = torch.randn(2, 200, generator=generator, dtype=torch.float64)
    pairs = zip(log_ratio.exp().tolist(), advantages.tolist(), strict=True)
    want = torch.tensor([oracle(r, a) for r, a in pairs], dtype=torch.float64)
    assert_close(clipped_surrogate(log_ratio.exp(), advantages, low=0.2, high=0.28), want)


def test_before_the_first_update_ppo_has_the_gradient_of_reinforce(vectors):
    batch = coupled_batch(vectors)
    fresh = type(batch)(
        logp=batch.logp, old_logp=batch.logp.detach(), advantages=batch.advantages,
        mask=batch.mask, group=batch.group,
    )  # fmt: skip
    gradients = [torch.autograd.grad(loss(fresh).sum(), fresh.logp)[0] for loss in (ppo, reinforce)]
    assert_close(*gradients)


@pytest.mark.parametrize("loss", [ppo, reinforce])
def test_a_row_without_advantage_has_neither_loss_nor_gradient(vectors, loss):
    batch = coupled_batch(vectors)
    quiet = type(batch)(
        logp=batch.logp, old_logp=batch.old_logp, advantages=0 * batch.advantages,
        mask=batch.mask, group=batch.group,
    )  # fmt: skip
    value = loss(quiet)
    assert facts_of(partial(loss)).zero_at_zero_advantage
    assert_close(value, torch.zeros_like(value))
    assert_close(torch.autograd.grad(value.sum(), batch.logp)[0], torch.zeros_like(value))


def test_needs_are_read_through_bound_numbers():
    assert facts_of(partial(partial(ppo, clip_low=0.1), clip_high=0.3)).reads == {"old_logp"}
    assert facts_of(reinforce).reads == set()
