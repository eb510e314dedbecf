"""Moving and greedy baselines: reference values and laws."""

from dataclasses import replace

import pytest
import torch
from records import rollout, scores
from torch.testing import assert_close

from tandem.advantages.baselines import MovingAverage, remax
from tandem.config import build, compose
from tandem.types import concat, take

GROUPS = torch.tensor([0, 0, 0, 1, 1, 1])
LONG = torch.arange(5) < torch.tensor([5, 3, 4, 2, 5, 4])[:, None]


def test_the_moving_average_is_the_reference_one(vectors):
    # "used" in the file is the raw average; Tandem uses the debiased one before the batch.
    after = [dict(zip(x[::2], x[1::2], strict=True)) for x in vectors.plain("ema")]
    one, two = [x for x in after if "after" in x]
    average, rows = MovingAverage(), rollout(LONG, GROUPS)
    first = torch.tensor([1.0, 0.0, 0.25, 1.0, 0.25, 0.0], dtype=torch.float64)  # mean 0.416667
    second = torch.tensor([1.0, 1.0, 0.5, 0.5, 1.0, 0.0], dtype=torch.float64)  # mean 0.666667
    assert_close(average(scores(first), rows), first[:, None] * LONG)
    assert average.average.item() == pytest.approx(one["after"])
    assert average.baseline == pytest.approx(one["debiased"])
    got = average(scores(second), rows)
    assert_close(got, (second[:, None] - one["debiased"]) * LONG)
    assert average.average.item() == pytest.approx(two["after"])
    assert average.baseline == pytest.approx(two["debiased"])


def test_a_constant_mean_is_its_own_average_at_any_time():
    average, rows = MovingAverage(decay=0.9), rollout(LONG, GROUPS)
    total = torch.tensor([1.0, 0.0, 0.5, 0.5, 1.0, 0.0])
    for _ in range(5):
        got = average(scores(total), rows)
        assert average.baseline == pytest.approx(0.5)
    assert_close(got, (total - 0.5)[:, None] * LONG)


def test_the_moving_average_hears_only_of_samples_that_were_scored_and_trained():
    known = torch.tensor([True, True, False, True, True, True])
    greedy = torch.arange(6) == 3
    rows = rollout(LONG, GROUPS, baseline=greedy)
    total = torch.tensor([1.0, 0.0, 9.0, 9.0, 1.0, 1.0])
    average = MovingAverage()
    got = average(scores(total, known), rows)
    assert average.baseline == pytest.approx(0.75)
    assert not got[[2, 3]].any()


def test_an_iteration_without_a_score_is_not_remembered():
    average, rows = MovingAverage(), rollout(LONG, GROUPS)
    average(scores(torch.ones(6)), rows)
    before = {name: x.clone() for name, x in average.state_dict().items()}
    unscored = scores(torch.zeros(6), torch.zeros(6, dtype=torch.bool))
    assert not average(unscored, rows).any()
    assert all(torch.equal(x, before[name]) for name, x in average.state_dict().items())


def test_a_checkpoint_remembers_the_average_in_full():
    one, other, rows = MovingAverage(), MovingAverage(), rollout(LONG, GROUPS)
    one(scores(torch.rand(6, generator=torch.Generator().manual_seed(0))), rows)
    other.load_state_dict(one.state_dict())
    torch.nn.ModuleList([other]).to(torch.bfloat16)
    assert other.baseline == one.baseline
    assert {x.dtype for x in one.state_dict().values()} == {torch.float64}


@pytest.mark.parametrize("decay", [1.0, -0.1])
def test_a_decay_outside_its_range_is_refused(decay):
    with pytest.raises(ValueError, match="0 <= decay < 1"):
        MovingAverage(decay=decay)


# The greedy answer.


def with_greedy(total, greedy, known=None):
    """The samples of two prompts, then the greedy answer to each."""
    rows = rollout(
        torch.cat([LONG, LONG[:2]]), torch.cat([GROUPS, torch.tensor([0, 1])]),
        baseline=torch.arange(8) >= 6,
    )  # fmt: skip
    return scores(torch.cat([total, torch.tensor(greedy).to(total.dtype)]), known), rows


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_remax_is_the_reference_one(vectors, dtype):
    got = remax(*with_greedy(vectors["in/R"].to(dtype), [0.5, 0.75]))
    assert not got[6:].any()
    assert_close(got[:6], vectors["remax"][:, None] * LONG, check_dtype=False)


def test_remax_subtracts_from_what_is_still_to_come(vectors):
    """With a penalty at every step the return differs by step; the baseline does not."""
    known, rows = with_greedy(vectors["in/R"], [0.5, 0.75])
    mask = vectors["in/M"].bool()
    penalty = 0.01 * torch.where(mask, vectors["in/OLD"] - vectors["in/REF"], 0)
    per_step = torch.cat([vectors["in/RTOK"] - penalty, torch.zeros(2, 5)])
    got = remax(replace(known, per_step=per_step), rows)[:6]
    baseline = torch.tensor([0.5, 0.5, 0.5, 0.75, 0.75, 0.75])[:, None]
    assert_close(got, torch.where(mask, vectors["rpp/ret_kl.01"] - baseline, 0))


def test_a_group_whose_greedy_row_has_no_score_or_is_missing_teaches_nothing():
    total = torch.tensor([1.0, 0.0, 0.25, 1.0, 1.0, 0.0])
    known = torch.arange(8) != 6
    unscored = remax(*with_greedy(total, [0.0, 0.75], known))
    records = with_greedy(total, [0.5, 0.75])
    present = (torch.arange(8) != 6).nonzero()[:, 0]
    missing = remax(*(take(record, present) for record in records))
    for got in (unscored, missing):
        assert not got[:3].any()
        assert got[3:6].any(1).all()
    without = rollout(LONG, GROUPS)
    assert not remax(scores(total), without).any()


def test_a_sample_without_a_score_teaches_nothing_and_moves_no_other():
    total = torch.tensor([1.0, 0.0, 0.25, 1.0, 1.0, 0.0])
    got = remax(*with_greedy(total, [0.5, 0.75], torch.arange(8) != 1))
    assert not got[1].any()
    rest = [0, 2, 3, 4, 5]
    assert_close(got[rest], remax(*with_greedy(total, [0.5, 0.75]))[rest])


def test_the_order_and_the_company_of_groups_do_not_matter():
    records = with_greedy(torch.tensor([1.0, 0.0, 0.25, 1.0, 1.0, 0.0]), [0.5, 0.75])
    want = remax(*records)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    assert_close(remax(*(take(record, order) for record in records)), want[order])
    others = with_greedy(torch.zeros(6), [9.0, 9.0])
    others = (others[0], replace(others[1], group=others[1].group + 2))
    both = (concat(pair) for pair in zip(records, others, strict=True))
    assert_close(remax(*both)[:8], want)


def test_reinforce_compares_with_the_moving_average_of_decay_0_99():
    made = build(compose(["algorithm=reinforce"]).algorithm).advantage
    assert isinstance(made, MovingAverage) and made.decay == 0.99
