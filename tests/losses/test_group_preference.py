"""Preferences of whole groups: against their formula, DPO's pairs, and under any cut."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from pairs import random_pairs, reference_pairs
from torch.nn.functional import softplus
from torch.testing import assert_close

from tandem.contracts import batch_statistics_of, facts_of
from tandem.losses import reduction
from tandem.losses.group_preference import group_preference
from tandem.losses.preference import dpo
from tandem.metrics import merge_metrics, own_metrics, reduce_metrics
from tandem.types import CoupledBatch, take

CUTS = [[[3, 1], [5], [0, 2, 4], [6, 7, 8, 9, 10, 11]], [[11, 0], [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]]]


def random_groups(groups: int = 3, size: int = 4, seed: int = 0) -> CoupledBatch:
    """Groups in shuffled order, of samples of 1 to 5 steps; float64."""
    generator = torch.Generator().manual_seed(seed)
    rows = groups * size
    noise = torch.randn(2, rows, 5, generator=generator, dtype=torch.float64)
    mask = torch.arange(5) < torch.randint(1, 6, (rows, 1), generator=generator)
    ref_logp = (-1.5 - noise[0].abs()) * mask
    advantages = torch.randn(rows, 1, generator=generator, dtype=torch.float64)
    return CoupledBatch(
        logp=((ref_logp + 0.3 * noise[1]) * mask).requires_grad_(),
        ref_logp=ref_logp,
        advantages=advantages * mask,
        mask=mask,
        group=torch.randperm(rows, generator=generator) % groups,
    )


def statistics(loss, batch):
    with torch.no_grad():
        return batch_statistics_of(loss)(batch)


def gradient_of(value, batch):
    return torch.autograd.grad(value, batch.logp)[0]


def total(loss, batch, *found):
    return (loss(batch, *found) * reduction.sequence_mean(batch.mask)).sum()


def by_formula(batch, beta):
    """The mean over groups of softplus(-beta / K sum of A (log p - log p_ref)), group by group."""
    scores = []
    for group in batch.group.unique():
        rows = (batch.group == group).nonzero()[:, 0].tolist()
        advantages = [batch.advantages[row][batch.mask[row]][0] for row in rows]
        ratios = [(batch.logp - batch.ref_logp)[row][batch.mask[row]].sum() for row in rows]
        parts = [a * ratio for a, ratio in zip(advantages, ratios, strict=True)]
        scores.append(-beta * sum(parts) / len(rows))
    return softplus(torch.stack(scores)).mean()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("beta", [0.2, 3.0])
def test_value_and_gradient_are_those_of_the_mean_over_groups(seed, beta):
    batch, loss = random_groups(seed=seed), partial(group_preference, beta=beta)
    got, want = total(loss, batch, statistics(loss, batch)), by_formula(batch, beta)
    assert_close(got, want)
    assert_close(gradient_of(got, batch), gradient_of(want, batch))


@pytest.mark.parametrize("batch", [reference_pairs(), random_pairs()], ids=["reference", "random"])
@pytest.mark.parametrize("beta", [0.1, 2.0])
def test_a_group_of_two_with_twice_the_beta_is_a_pair_of_dpo(batch, beta):
    batch = replace(batch, advantages=batch.advantages.sign())
    loss = partial(group_preference, beta=2 * beta)
    found = statistics(loss, batch)
    assert_close(loss(batch, found), dpo(batch, beta=beta))
    pair = [total(loss, batch, found), total(partial(dpo, beta=beta), batch)]
    assert_close(*(gradient_of(value, batch) for value in pair))


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_rows_need_not_be_together(cut):
    batch, loss = random_groups(), group_preference
    found, weight = statistics(loss, batch), reduction.sequence_mean(batch.mask)
    whole, parts = gradient_of((loss(batch, found) * weight).sum(), batch), []
    measured = {}
    for rows in map(torch.tensor, cut):
        part = take(batch, rows)
        parts.append(gradient_of((loss(part, found[rows]) * weight[rows]).sum(), batch))
        merge_metrics(measured, own_metrics(loss, part, found[rows]))
    assert_close(sum(parts), whole, atol=1e-14, rtol=0)
    want = reduce_metrics(own_metrics(loss, batch, found))
    assert reduce_metrics(measured) == pytest.approx(want, abs=1e-12)
    assert not facts_of(loss).whole_groups


def test_a_row_without_advantage_moves_nothing():
    batch, loss = random_groups(), group_preference
    quiet = replace(batch, advantages=torch.where(batch.group[:, None] == 1, 0, batch.advantages))
    found = statistics(loss, quiet)
    gradient = gradient_of(total(loss, quiet, found), quiet)
    rows = batch.group == 1
    assert facts_of(loss).zero_at_zero_advantage and rows.sum() == 4
    assert not loss(quiet, found)[rows].any() and not gradient[rows].any()
    assert gradient[~rows].any()


def test_metrics_are_those_of_groups():
    batch = random_groups()
    wrong = replace(batch, advantages=-batch.advantages)
    got, turned = (
        reduce_metrics(own_metrics(group_preference, x, statistics(group_preference, x)))
        for x in (batch, wrong)
    )
    assert turned["preference/group_score"] == pytest.approx(-got["preference/group_score"])
    assert turned["preference/group_weight"] == pytest.approx(1 - got["preference/group_weight"])
    assert turned["preference/group_accuracy"] == pytest.approx(
        1 - got["preference/group_accuracy"]
    )
    assert 0 < got["preference/group_accuracy"] < 1, "groups of both kinds are to be seen"
