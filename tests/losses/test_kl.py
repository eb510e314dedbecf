"""KL estimates: reference values, and each gradient in expectation, by enumeration."""

import math
from dataclasses import replace

import pytest
import torch
from records import coupled_batch
from torch.testing import assert_close

from tandem.losses.kl import k2, k3, k3_plus, k3_unbiased
from tandem.losses.policy import k3_of
from tandem.losses.reduction import token_mean
from tandem.types import CoupledBatch


def test_k3_pulls_back_a_step_however_far_it_has_drifted():
    """Its slope is 1 - exp(-x), x = log p - log p_ref."""
    logp = torch.tensor([[-0.01, -0.01]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(k3_of(logp, torch.tensor([[-60.0, -21.0]])).sum(), logp)
    assert_close(gradient, torch.ones_like(gradient), atol=1e-8, rtol=0)


@pytest.mark.parametrize(
    ("penalty", "name"),
    [
        (k2, "kl/k2/tokenmean"),
        (k3, "kl/k3/tokenmean"),
        (k3_plus, "kl/k3+"),
        (k3_unbiased, "kl/k3_is(old)"),
    ],
)
def test_value_and_gradient_are_the_reference_ones(vectors, penalty, name):
    batch = coupled_batch(vectors)
    value = (penalty(batch) * token_mean(batch.mask)).sum()
    (gradient,) = torch.autograd.grad(value, batch.logp)
    assert_close(value.detach(), vectors[f"{name}/loss"], atol=1e-6, rtol=0)
    assert_close(gradient, vectors[f"{name}/grad"], atol=1e-6, rtol=0)


def test_on_fresh_samples_the_ratio_counts_in_the_gradient_alone(vectors):
    batch = coupled_batch(vectors)
    fresh = replace(batch, old_logp=batch.logp.detach())
    value = (k3_unbiased(fresh) * token_mean(batch.mask)).sum()
    (gradient,) = torch.autograd.grad(value, batch.logp)
    assert_close(value.detach(), vectors["kl/k3_is(self)/loss"], atol=1e-6, rtol=0)
    assert_close(gradient, vectors["kl/k3_is(self)/grad"], atol=1e-6, rtol=0)


def test_the_unbiased_estimate_has_the_gradient_of_k1_as_a_score(vectors):
    """The gradient of sg(w k1) log p; that of w k1 differs by the score, whose mean is 0."""
    batch = coupled_batch(vectors)
    weight = token_mean(batch.mask)
    ratio = torch.where(batch.mask, (batch.logp - batch.old_logp).exp(), 0)
    k1 = torch.where(batch.mask, batch.logp - batch.ref_logp, 0)
    terms = (k3_unbiased(batch), (ratio * k1).detach() * batch.logp, ratio * k1)
    names = ("kl/wk1_grad_rows", "kl/wk1_grad_rows", "kl/w_times_k1_diff/grad_rows")
    for term, name in zip(terms, names, strict=True):
        (gradient,) = torch.autograd.grad((term * weight).sum(), batch.logp, retain_graph=True)
        assert_close(gradient.sum(1), vectors[name], atol=1e-6, rtol=0)


@pytest.mark.parametrize("log_ratio", [-18.0, -12.0, -0.01, 0.01, 12.0])
def test_the_unbiased_estimate_is_exact_in_float32_however_far_the_reference_is(log_ratio):
    """r (exp(-x) + x - 1) and its slope r x, written out in float64: r = exp(0.5)."""
    ref_logp, ratio = -20.0, math.exp(0.5)
    logp = torch.tensor([[ref_logp + log_ratio]], requires_grad=True)
    x = float(logp.detach().double() - ref_logp)
    batch = CoupledBatch(
        logp=logp,
        old_logp=(logp - 0.5).detach(),
        ref_logp=torch.tensor([[ref_logp]]),
        advantages=torch.zeros(1, 1),
        mask=torch.ones(1, 1, dtype=torch.bool),
        group=torch.zeros(1, dtype=torch.int64),
    )
    value = k3_unbiased(batch)
    (slope,) = torch.autograd.grad(value.sum(), logp)
    assert value.item() == pytest.approx(ratio * (math.expm1(-x) + x), rel=1e-4)
    assert slope.item() == pytest.approx(ratio * x, rel=1e-5)


REVERSE = [0.149849, -0.187048, 0.037199]
FORWARD = [0.169712, -0.238644, 0.068932]


@pytest.mark.parametrize(
    ("penalty", "gradient"),
    [(k2, REVERSE), (k3, FORWARD), (k3_plus, REVERSE), (k3_unbiased, REVERSE)],
)
def test_expected_gradient_over_three_symbols(penalty, gradient):
    logits = torch.tensor([0.5, -0.3, 0.1], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([0.0, 0.4, -0.2], dtype=torch.float64).log_softmax(0)
    logp = logits.log_softmax(0)
    every_symbol = CoupledBatch(
        logp=logp[:, None], old_logp=logp[:, None].detach(), ref_logp=ref[:, None],
        advantages=torch.zeros(3, 1), mask=torch.ones(3, 1, dtype=torch.bool),
        group=torch.arange(3),
    )  # fmt: skip
    expected = (penalty(every_symbol)[:, 0] * logp.exp().detach()).sum()
    assert_close(
        torch.autograd.grad(expected, logits)[0], torch.tensor(gradient).double(), atol=1e-6, rtol=0
    )
