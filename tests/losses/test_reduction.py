"""Step weights: micro-batches add up to the full batch, and padding does not matter."""

from functools import partial

import pytest
import torch
from torch.testing import assert_close

from tandem.losses.reduction import constant_length, sequence_mean, sequence_sum, token_mean

ALL = [token_mean, sequence_mean, sequence_sum, partial(constant_length, length=9)]


def case():
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(7) < torch.randint(1, 8, (6, 1), generator=generator)
    return torch.randn(6, 7, generator=generator, dtype=torch.float64), mask


@pytest.mark.parametrize("weigh", ALL)
@pytest.mark.parametrize("cut", [[6], [1, 5], [2, 1, 3]])
def test_any_cut_adds_up(weigh, cut):
    loss, mask = case()
    weight = weigh(mask)
    parts = zip(loss.split(cut), weight.split(cut), strict=True)
    assert_close(sum((l * w).sum() for l, w in parts), (loss * weight).sum())


@pytest.mark.parametrize("weigh", ALL)
def test_padding_does_not_matter(weigh):
    loss, mask = case()
    wide, wide_mask = (torch.cat([x, x.new_zeros(6, 3)], 1) for x in (loss, mask))
    assert_close((wide * weigh(wide_mask)).sum(), (loss * weigh(mask)).sum())


@pytest.mark.parametrize("weigh", ALL)
def test_a_sample_without_trained_steps_is_no_sample(weigh):
    _, mask = case()
    empty = torch.cat([mask, torch.zeros(2, 7, dtype=torch.bool)])
    assert_close(weigh(empty)[:6], weigh(mask))


@pytest.mark.parametrize("weigh", ALL)
def test_every_sample_twice_is_the_same_loss(weigh):
    loss, mask = case()
    twice = (loss.repeat(2, 1) * weigh(mask.repeat(2, 1))).sum()
    assert_close(twice, (loss * weigh(mask)).sum())


def test_sequence_mean_is_the_mean_of_sample_means():
    loss, mask = case()
    want = torch.stack([row[keep].mean() for row, keep in zip(loss, mask, strict=True)]).mean()
    assert_close((loss * sequence_mean(mask)).sum(), want)


def test_dropping_a_sample_by_its_mask_counts_as_the_reference_says(vectors):
    loss = torch.where(vectors["in/M"].bool(), vectors["ppo/mat"], 0)
    mask = vectors["in/M"].bool().clone()
    mask[1] = False
    assert_close((loss * sequence_mean(mask)).sum().item(), -0.027141, atol=1e-6, rtol=0)


def test_of_samples_of_one_length_all_means_are_one():
    """All images of a flow have the same number of steps, so their averages agree."""
    mask = torch.ones(6, 7, dtype=torch.bool)
    for weigh in (sequence_mean, partial(constant_length, length=7)):
        assert_close(weigh(mask), token_mean(mask))
    assert_close(sequence_sum(mask), 7 * token_mean(mask))
