"""Advantages that are composed of others."""

from functools import partial

import torch
from records import rollout, scores
from torch.testing import assert_close

from tandem.advantages.compose import Combined, Share, Standardised, normalise
from tandem.advantages.group import batch_relative, given, group_relative, leave_one_out
from tandem.contracts import declare, facts_of

centred = partial(group_relative, scale=None)
GROUPS = torch.tensor([0, 0, 0, 1, 1, 1])
TOTAL = torch.tensor([1.0, 0.0, 0.25, 1.0, 1.0, 0.0], dtype=torch.float64)
LONG = torch.arange(5) < torch.tensor([5, 3, 4, 2, 5, 4])[:, None]


@declare(reads={"values"})
def judged(scores, rollout):
    raise AssertionError("a share of 0 is not computed")


def test_a_sum_is_the_sum_with_its_coefficients():
    rows = rollout(LONG, GROUPS)
    both = Combined({"own": Share(centred, 2.0), "all": Share(batch_relative, -0.5)})
    want = 2 * centred(scores(TOTAL), rows) - 0.5 * batch_relative(scores(TOTAL), rows)
    assert_close(both(scores(TOTAL), rows), want)


def test_a_share_of_zero_neither_runs_nor_needs_anything():
    rows = rollout(LONG, GROUPS)
    off = Combined({"own": Share(given), "critic": Share(judged, 0.0)})
    assert_close(off(scores(TOTAL), rows), given(scores(TOTAL), rows))
    assert facts_of(off).reads == frozenset()


def test_what_is_inside_says_what_it_needs():
    for around in (Standardised, lambda of: Combined({"critic": Share(of, 0.1)})):
        assert facts_of(around(judged)).reads == {"values"}


def test_standardising_compares_samples_even_if_what_is_inside_does_not():
    assert facts_of(given).compares is None
    assert facts_of(Standardised(given)).compares == "batch"
    assert facts_of(Standardised(leave_one_out)).compares == "group"


def test_whitening_counts_steps_and_standardising_counts_samples():
    rows = rollout(LONG, GROUPS)
    by_step = normalise(given(scores(TOTAL), rows), scores(TOTAL), rows)
    by_sample = Standardised(given)(scores(TOTAL), rows)
    assert by_step[LONG].mean().abs() < 1e-9 < by_sample[LONG].mean().abs()
    assert by_sample[:, 0].mean().abs() < 1e-9
    assert abs(by_sample[:, 0].std().item() - 1) < 1e-3


def test_standardising_ignores_what_an_advantage_says_outside_the_mask():
    def everywhere(scores, rollout):
        return torch.where(LONG, given(scores, rollout), 9.0)

    rows = rollout(LONG, GROUPS)
    mine, other = (Standardised(of)(scores(TOTAL), rows) for of in (everywhere, given))
    assert_close(mine, other)


def test_they_nest():
    rows = rollout(LONG, GROUPS)
    outer = Standardised(Combined({"one": Share(Standardised(leave_one_out, eps=0.0), 3.0)}))
    want = Standardised(Standardised(leave_one_out, eps=0.0), eps=1e-4 / 3)
    assert_close(outer(scores(TOTAL), rows), want(scores(TOTAL), rows))
