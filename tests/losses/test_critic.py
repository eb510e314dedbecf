"""The loss of a critic against the reference vectors."""

from dataclasses import replace
from functools import partial
from math import isnan

import pytest
import torch
from records import coupled_batch

from tandem.advantages.temporal import return_to_go
from tandem.losses import reduction
from tandem.losses.critic import explained_variance, squared_errors, value_loss
from tandem.metrics import own_metrics, reduce_metrics

PRECISION = {torch.float64: 1e-6, torch.float32: 1e-5}
TOKENS, MEAN, SUM = reduction.token_mean, reduction.sequence_mean, reduction.sequence_sum


def make_case(vectors, dtype=torch.float64):
    batch = coupled_batch(vectors, dtype)
    values, old, rewards = (
        torch.where(batch.mask, vectors[name].to(dtype), 0) for name in ("in/VP", "in/V", "in/RTOK")
    )
    returns = return_to_go(rewards, batch.mask)
    return replace(batch, values=values.requires_grad_(), old_values=old, returns=returns)


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize(
    ("clip", "weigh", "name"),
    [
        (0.2, TOKENS, "loss"),
        (0.5, TOKENS, "clip.5"),
        (None, TOKENS, "unclipped"),
        (0.2, MEAN, "seq-mean-token-mean"),
        (0.2, SUM, "seq-mean-token-sum"),
    ],
)
def test_values_are_the_reference_ones(vectors, clip, weigh, name, dtype):
    batch = make_case(vectors, dtype)
    got = (value_loss(batch, clip=clip) * weigh(batch.mask)).sum()
    want = vectors[f"value/{name}"].item()
    assert got.item() == pytest.approx(want, abs=PRECISION[dtype])


def test_it_is_the_case_by_case_loss_and_gradient(vectors):
    batch = make_case(vectors)
    loss = value_loss(batch, clip=0.2)
    (gradient,) = torch.autograd.grad(loss.sum(), batch.values)
    cases = [x[batch.mask].tolist() for x in (batch.values, batch.old_values, batch.returns)]
    seen = set()
    for v, old, target, got, slope in zip(
        *cases, loss[batch.mask].tolist(), gradient[batch.mask].tolist(), strict=True
    ):
        held = min(max(v, old - 0.2), old + 0.2)
        clipped = abs(held - target) > abs(v - target)
        assert got == pytest.approx(0.5 * ((held if clipped else v) - target) ** 2)
        if abs(held - v) > 0:  # where the two agree, torch splits the gradient between them
            assert slope == pytest.approx(0.0 if clipped else v - target)
        seen.add(clipped)
    assert seen == {True, False}
    assert not gradient[~batch.mask].any()


def test_it_counts_the_steps_that_it_clips(vectors):
    batch = make_case(vectors)
    got = reduce_metrics(own_metrics(partial(value_loss, clip=0.2), batch))
    assert got == {"critic/value_clip_frac": pytest.approx(vectors["value/clipfrac"].item())}
    assert own_metrics(partial(value_loss, clip=None), batch) == {}


def test_the_explained_variance_is_the_reference_one(vectors):
    batch = make_case(vectors)
    got = explained_variance(batch.returns, batch.values.detach(), batch.mask)
    assert got == pytest.approx(vectors["value/explained_var"].item())


def test_a_perfect_critic_explains_all_and_a_constant_nothing():
    returns = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(5) < torch.tensor([5, 3, 4, 0])[:, None]
    garbage = torch.where(mask, returns + 7, torch.inf)
    assert explained_variance(returns, garbage, mask) == pytest.approx(1.0)
    assert explained_variance(returns, torch.full((4, 5), 0.3), mask) == pytest.approx(
        0.0, abs=1e-6
    )


def test_where_all_returns_are_alike_there_is_nothing_to_explain():
    mask = torch.ones(2, 3, dtype=torch.bool)
    values = torch.rand(2, 3, generator=torch.Generator().manual_seed(0))
    assert isnan(explained_variance(torch.full((2, 3), 0.3), values, mask))
    assert isnan(explained_variance(values, values, mask & False))


def test_rounding_is_not_counted_as_a_clip(vectors):
    """old + (V - old) need not equal V: values that moved by less than the clip are not clipped."""
    batch, chance = make_case(vectors, torch.float32), torch.Generator().manual_seed(0)
    differ = 0
    for _ in range(20):
        old, values, returns = torch.rand(3, *batch.mask.shape, generator=chance) - 0.5
        moved = replace(batch, values=values / 1e3, old_values=old / 4, returns=returns)
        free, held = squared_errors(moved, 0.2)
        differ += int((held > free)[batch.mask].sum())
        got = reduce_metrics(own_metrics(partial(value_loss, clip=0.2), moved))
        assert got == {"critic/value_clip_frac": 0.0}
    assert differ > 0
