"""The bias of the unmasking order in the score of a path: a simulation of two positions.

Each has two tokens and ignores the other, so the answer is known. If the values of a path were
log-probabilities of what was done, their gradient would have mean 0.
"""

import pytest
import torch

from tandem import rng
from tandem.policies.language.records import Sampling
from tandem.policies.language.sampling import draw
from tandem.policies.masked.orders import ORDERS, pick_first

LOGP = torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log()  # of the positions
ROWS = 40_000
CLOSE = 0.008  # four standard deviations of a share of the rows


def unmask_in_order(order):
    """The tokens written at one position per step, [ROWS, 2]."""
    keys = torch.arange(ROWS)
    hidden = torch.ones(ROWS, 2, dtype=torch.bool)
    tokens = torch.zeros(ROWS, 2, dtype=torch.int64)
    for step in range(2):
        drawn = torch.stack([candidates(keys, step, place) for place in range(2)], 1)
        priority = torch.stack(
            [priority_of(order, drawn[:, place], keys, place) for place in range(2)], 1
        )
        chosen = pick_first(priority, hidden, torch.ones(ROWS, dtype=torch.int64))
        tokens = torch.where(chosen, drawn, tokens)
        hidden &= ~chosen
    return tokens


def candidates(keys, step, place):
    logits = LOGP[place].expand(ROWS, 2)
    return draw(logits, rng.key(keys, step, place), Sampling(max_new_tokens=2)).token


def priority_of(order, token, keys, place):
    logits = LOGP[place].expand(ROWS, 2)
    return ORDERS[order].priority(logits, token, rng.key(keys, "order", place)).double()


@pytest.mark.parametrize("order", ["random", "entropy", "margin"])
def test_orders_that_look_at_no_candidate_write_what_was_drawn(order):
    share = (unmask_in_order(order) == 0).double().mean(0)
    assert (share - torch.tensor([0.9, 0.6])).abs().max() < CLOSE
    assert not ORDERS[order].by_candidate


def test_confidence_writes_the_likely_more_often_than_it_is_drawn():
    """The likely token of the confident position is drawn at once, or drawn again after the other
    position was written first: 0.9 + 0.1 * 0.9. Its score, 1 - 0.9 or -0.9, has mean 0.09."""
    share = (unmask_in_order("confidence") == 0).double().mean(0)
    assert abs(share[0] - 0.99) < CLOSE
    assert share[0] - 0.9 > 10 * CLOSE  # the bias
    assert ORDERS["confidence"].by_candidate


def test_rewards_that_are_compared_leave_the_right_direction():
    """The reason for a warning instead of a refusal: with centred rewards the gradient is the
    covariance of reward and score, which does not depend on the score's mean, for either token."""
    unlikely = (unmask_in_order("confidence")[:, 0] == 1).double()
    score = unlikely - 0.1  # d log p / d logit of the token that is rewarded
    assert (unlikely * score).mean() > 0  # the reward itself: right here,
    assert score.mean() < -0.08  # but a constant reward pushes the other way
    assert ((unlikely - unlikely.mean()) * score).mean() > 0
