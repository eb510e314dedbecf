"""Advantages that compare the rewards one by one."""

from functools import partial

import pytest
import torch
from records import rollout, with_whitening
from torch.testing import assert_close

from tandem.advantages.group import group_relative, unbiased_std
from tandem.advantages.parts import by_part, gdpo, select_part
from tandem.types import Scores

PRECISION = {torch.float64: 1e-6, torch.float32: 1e-5}
WEIGHTS = {"right": 1.0, "short": 0.5}
GROUPS = torch.tensor([0, 0, 0, 1, 1, 1])


def two(dtype=torch.float64, right=(1, 0, 1, 1, 1, 0), short=(0.2, 0.4, 0, 0.1, 0.3, 0.2)):
    parts = {"right": torch.tensor(right).to(dtype), "short": torch.tensor(short).to(dtype)}
    stacked = torch.stack([*parts.values()])
    return Scores(total=stacked.nan_to_num(0).sum(0), parts=parts, scored=stacked.isfinite().any(0))


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize(
    ("estimate", "name"),
    [
        (partial(by_part, weights=WEIGHTS, eps=1e-6), "gdpo/pre"),
        (with_whitening(partial(by_part, weights=WEIGHTS, eps=1e-6)), "gdpo/tokwhiten"),
        (partial(gdpo, weights=WEIGHTS), "gdpo/seqnorm_trl"),
    ],
)
def test_values_are_the_reference_ones(vectors, estimate, name, dtype):
    mask, want = vectors["in/M"].bool(), vectors[name]
    got = estimate(two(dtype), rollout(mask, GROUPS))
    want = want[:, None] * mask if want.ndim == 1 else want
    assert_close(got, want, atol=PRECISION[dtype], rtol=0.0, check_dtype=False)


def one_step(group=GROUPS):
    return rollout(torch.ones(len(group), 1, dtype=torch.bool), group)


def test_a_reward_that_was_not_given_leaves_only_its_own_statistics():
    nan = float("nan")
    got = by_part(two(short=(0.2, nan, 0, nan, nan, 0.2)), one_step(), eps=1e-6)[:, 0]
    alone = group_relative(select_part(two(), "right"), one_step(), scale=unbiased_std)[:, 0]
    pair = torch.tensor([0.5**0.5, 0, -(0.5**0.5)], dtype=torch.float64)  # two samples are left
    assert_close(got[:3], alone[:3] + pair, atol=1e-4, rtol=0)
    assert_close(got[3:], alone[3:])  # one is left: it has no rival


def test_a_sample_that_no_reward_scored_gets_nothing():
    nan = float("nan")
    got = gdpo(two(right=(1, 0, nan, 1, 1, 0), short=(0.2, 0.4, nan, 0.1, 0.3, 0.2)), one_step())
    kept = torch.tensor([0, 1, 3, 4, 5])
    parts = {name: part[kept] for name, part in two().parts.items()}
    fewer = Scores(total=two().total[kept], parts=parts, scored=torch.ones(5, dtype=torch.bool))
    assert (got[2] == 0).all()
    assert_close(got[kept], gdpo(fewer, one_step(GROUPS[kept])))


def test_a_group_that_ties_in_every_part_gets_exactly_nothing():
    got = gdpo(two(right=(1, 1, 1, 1, 0, 0), short=(0.3, 0.3, 0.3, 0.1, 0.2, 0.4)), one_step())
    assert (got[:3] == 0).all()
    assert got[3:].abs().max() > 0.1


def test_rewards_whose_sums_tie_are_still_told_apart():
    """The purpose of GDPO: to GRPO 1 + 0 and 0 + 1 are equal."""
    split = two(right=(1, 0, 0, 1, 0, 1), short=(0.0, 1, 0.5, 0, 1, 0.5))
    got = gdpo(split, one_step(), weights={"right": 2.0, "short": 1.0})[:, 0]
    assert got[0] > got[1]
    assert_close(got.sum(), torch.tensor(0.0, dtype=torch.float64))


def test_a_weight_for_no_reward_is_refused():
    with pytest.raises(ValueError, match="no reward is called 'tall'; there are right, short"):
        gdpo(two(), one_step(), weights={"tall": 1.0})
