"""Ties under rounding: a mean of equal float32 numbers need not equal them."""

from functools import partial

import pytest
import torch
from records import rollout, scores

from tandem.advantages.baselines import raw_reward
from tandem.advantages.compose import Standardised
from tandem.advantages.group import (
    batch_relative,
    gpg,
    group_relative,
    leave_one_out,
    maxrl,
    opo,
    population_std,
    unbiased_std,
)
from tandem.advantages.parts import by_part, gdpo
from tandem.advantages.passk import best_gap
from tandem.advantages.preference import win_rate

ALL = {
    "grpo": partial(group_relative, scale=unbiased_std),
    "dr_grpo": partial(group_relative, scale=None),
    "rloo": leave_one_out,
    "batch": batch_relative,
    "gpg": gpg,
    "maxrl": maxrl,
    "opo": opo,
    "win_rate": win_rate,
    "best_gap": partial(best_gap, scale=unbiased_std),
    "standardised": Standardised(of=raw_reward, eps=0.0),
}
SIZES, VALUES = (6, 7, 8, 11, 16), (0.1, 0.3, 0.35, 0.7, 10.1, 33.3, 100.1, 1234.567)


def residue(size: int, value: float) -> float:
    total = torch.full((size,), value)
    return float((total - total.sum() / size).abs().max())


def test_some_ties_leave_a_residue():
    assert sum(residue(size, value) > 0 for size in SIZES for value in VALUES) >= 10


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("estimate", ALL.values(), ids=ALL)
def test_a_tie_of_any_size_is_exactly_zero(estimate, size):
    rows = rollout(torch.ones(size, 2, dtype=torch.bool), torch.zeros(size, dtype=torch.int64))
    for value in VALUES:
        assert not estimate(scores(torch.full((size,), value)), rows).any()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("estimate", ALL.values(), ids=ALL)
def test_scores_a_rounding_apart_tie(estimate, size):
    rows = rollout(torch.ones(size, 2, dtype=torch.bool), torch.zeros(size, dtype=torch.int64))
    total = torch.full((size,), 0.3)
    total[0] = total[0].nextafter(torch.tensor(1.0))  # the same rewards, added in another order
    assert not estimate(scores(total), rows).any()


def test_a_tie_without_an_eps_is_zero_and_no_nan():
    rows = rollout(torch.ones(4, 2, dtype=torch.bool), torch.zeros(4, dtype=torch.int64))
    for estimate in (
        *(
            partial(group_relative, scale=scale, eps=0.0)
            for scale in (unbiased_std, population_std)
        ),
        *(partial(parts, eps=0.0) for parts in (by_part, gdpo)),
        partial(best_gap, scale=unbiased_std, eps=0.0),
        Standardised(of=raw_reward, eps=0.0),
    ):
        assert not estimate(scores(torch.ones(4)), rows).any()
