"""The classification loss of a group's samples by ratio, against reference values and a loop."""

import math
from dataclasses import replace

import pytest
import torch
from every_loss import random_batch
from torch.testing import assert_close

from tandem.losses.classification import real
from tandem.losses.reduction import sequence_mean
from tandem.metrics import own_metrics, reduce_metrics
from tandem.types import CoupledBatch, take


def test_real_is_the_reference_one(axis):
    moved = axis("real/mean_log_ratio").requires_grad_()
    signs = 2 * axis("real/label") - 1
    # Two steps per row, one of which moved twice the mean: only the mean counts.
    steps = torch.tensor([2.0, 0.0], dtype=torch.float64)
    batch = CoupledBatch(
        logp=moved[:, None] * steps, advantages=signs[:, None].expand(-1, 2),
        mask=torch.ones(4, 2, dtype=torch.bool), group=torch.zeros(4, dtype=torch.int64),
        old_logp=torch.zeros(4, 2),
    )  # fmt: skip
    loss = (real(batch, tau=axis("real/tau").item()) * sequence_mean(batch.mask)).sum()
    assert_close(loss, axis("real/loss"), atol=1e-6, rtol=0)
    assert_close(torch.autograd.grad(loss, moved)[0], axis("real/grad"), atol=1e-6, rtol=0)


@pytest.mark.parametrize("seed", range(3))
def test_a_group_has_the_value_of_a_loop_over_its_samples(seed):
    batch, tau = random_batch(seed=seed), 0.5
    mean = ((batch.logp - batch.old_logp) * batch.mask).sum(1) / batch.mask.sum(1)
    value = real(batch, tau=tau)
    for group in range(10):
        rows = [row for row in range(40) if batch.group[row] == group]
        labelled = [(mean[row].item() / tau, bool(batch.advantages[row, 0] > 0)) for row in rows]
        right, wrong = ([s for s, good in labelled if good is kind] for kind in (True, False))
        want = math.log1p(sum(map(math.exp, wrong))) + math.log1p(sum(math.exp(-s) for s in right))
        want = want if right and wrong else 0.0
        for row in rows:
            assert value[row, 0].item() == pytest.approx(want, abs=1e-12)


def test_a_group_of_one_kind_or_without_advantage_says_nothing():
    batch = random_batch()
    signs = torch.where(batch.group < 5, 1.0, 0.0).double()[:, None] * batch.mask
    batch = replace(batch, advantages=signs)
    loss = real(batch)
    assert not loss.any()
    assert not torch.autograd.grad(loss.sum(), batch.logp)[0].any()


def test_whole_groups_may_be_cut_from_one_another_and_metrics_add_up():
    batch = random_batch()
    for rows in (torch.arange(16), torch.arange(16, 40)):
        assert_close(real(take(batch, rows)), real(batch)[rows])
    found = reduce_metrics(own_metrics(real, batch))
    assert 0 < found["actor/misplaced"] < 1


def test_on_fresh_samples_a_rare_kind_pulls_as_hard_as_a_frequent_one_almost():
    """One right sample of eight has the gradient 1 / (2 tau), the others 1 / (8 tau)."""
    zeros = torch.zeros(8, 1, dtype=torch.float64)
    labels = -torch.ones_like(zeros)
    labels[0] = 1
    batch = CoupledBatch(
        logp=zeros.clone().requires_grad_(), old_logp=zeros, advantages=labels,
        mask=torch.ones(8, 1, dtype=torch.bool), group=torch.zeros(8, dtype=torch.int64),
    )  # fmt: skip
    loss = (real(batch, tau=0.5) * sequence_mean(batch.mask)).sum()
    (gradient,) = torch.autograd.grad(loss, batch.logp)
    assert_close(gradient[:, 0], torch.tensor([-1.0] + [0.25] * 7, dtype=torch.float64))
