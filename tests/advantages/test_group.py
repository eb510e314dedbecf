"""Group advantages against the reference vectors, and their laws."""

from functools import partial

import pytest
import torch
from records import rollout, scores
from torch.testing import assert_close

from tandem.advantages.group import given, group_relative, leave_one_out, unbiased_std

grpo = partial(group_relative, scale=unbiased_std)
dr_grpo = partial(group_relative, scale=None)
ALL = [grpo, dr_grpo, leave_one_out]
TWO_OF_THREE = torch.tensor([0, 0, 0, 1, 1, 1])


def per_sample(estimate, total, group):
    one_step = torch.ones(len(total), 1, dtype=torch.bool)
    return estimate(scores(total), rollout(one_step, group))[:, 0]


@pytest.mark.parametrize(
    ("estimate", "name"),
    [
        (grpo, "grpo/std"),
        (partial(grpo, eps=1e-4), "grpo/std_eps1e-4"),
        (dr_grpo, "grpo/nostd"),
        (leave_one_out, "rloo"),
    ],
)
def test_values_are_the_reference_ones(vectors, estimate, name):
    got = per_sample(estimate, vectors["in/R"], TWO_OF_THREE)
    assert_close(got, vectors[name], atol=1e-6, rtol=0)


@pytest.mark.parametrize(("estimate", "name"), [(grpo, "grpo"), (leave_one_out, "rloo")])
def test_groups_need_not_be_consecutive(vectors, estimate, name):
    group = vectors["nonconsec/idx"].long()
    got = per_sample(estimate, vectors["in/R"], group)
    assert_close(got, vectors[f"nonconsec/{name}"], atol=1e-6, rtol=0)


@pytest.mark.parametrize(("estimate", "name"), [(grpo, "grpo"), (leave_one_out, "rloo")])
def test_a_group_of_one_gets_zero(vectors, estimate, name):
    group = vectors["single/idx"].long()
    got = per_sample(estimate, vectors["single/scores"], group)
    assert_close(got, vectors[f"single/{name}_zero"], atol=1e-6, rtol=0)


def test_samples_that_are_alone_in_their_group_get_zero(vectors):
    got = per_sample(grpo, vectors["in/R"], torch.tensor([0, 0, 0, 1, 2, 3]))
    assert_close(got, vectors["grpo/single_zero"], atol=1e-6, rtol=0)


def test_a_group_that_ties_gets_exactly_zero(vectors):
    total = torch.tensor([0.3, 0.3, 0.3, 1.0, 0.0, 1.0])
    got = per_sample(grpo, total, TWO_OF_THREE)
    assert (got[:3] == 0).all()
    assert_close(got.double(), vectors["tie/grpo"], atol=1e-6, rtol=0)


def case(seed=0, batch=12):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(4) < torch.randint(1, 5, (batch, 1), generator=generator)
    total = torch.randn(batch, generator=generator, dtype=torch.float64)
    return total, rollout(mask, torch.arange(batch) % 3)


@pytest.mark.parametrize("estimate", ALL)
def test_a_bonus_for_a_whole_group_changes_nothing(estimate):
    total, rows = case()
    bonus = torch.tensor([5.0, -2.0, 0.1], dtype=torch.float64)[rows.group]
    assert_close(estimate(scores(total + bonus), rows), estimate(scores(total), rows))


@pytest.mark.parametrize("estimate", ALL)
def test_row_order_does_not_matter(estimate):
    total, rows = case()
    order = torch.randperm(len(total), generator=torch.Generator().manual_seed(1))
    shuffled = estimate(scores(total[order]), rollout(rows.mask[order], rows.group[order]))
    assert_close(shuffled, estimate(scores(total), rows)[order])


@pytest.mark.parametrize("estimate", ALL)
def test_a_missing_score_leaves_its_group_as_if_never_sampled(estimate):
    total, rows = case()
    known = torch.ones(12, dtype=torch.bool)
    known[4] = False
    got = estimate(scores(total, known), rows)
    alone = estimate(scores(total[known]), rollout(rows.mask[known], rows.group[known]))
    assert (got[4] == 0).all()
    assert_close(got[known], alone)


@pytest.mark.parametrize("estimate", [*ALL, given])
def test_steps_outside_the_mask_get_nothing(estimate):
    total, rows = case()
    assert (estimate(scores(total), rows)[~rows.mask] == 0).all()


def test_leave_one_out_matches_a_loop():
    total, rows = case()
    others = [(rows.group == g) & (torch.arange(12) != i) for i, g in enumerate(rows.group)]
    want = torch.stack([r - total[o].mean() for r, o in zip(total, others, strict=True)])
    assert_close(leave_one_out(scores(total), rows)[:, 0], want)
