"""Sums over groups, whatever the order of their rows."""

import pytest
import torch
from torch.testing import assert_close

from tandem.advantages.group import exp_below_largest, group_relative, group_sum, number_groups
from tandem.config import build, compose

ORDERS = {
    "rising": [2, 2, 2, 5, 5, 7],
    "side by side": [7, 2, 2, 2, 5, 5],
    "mixed": [5, 2, 7, 2, 5, 2],
    "one": [4] * 6,
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_sum_is_that_of_a_loop_wherever_the_rows_stand(order):
    x = torch.randn(6, 2, dtype=torch.float64)
    want = [sum(x[j] for j in range(6) if order[j] == one) for one in order]
    assert_close(group_sum(x, torch.tensor(order)), torch.stack(want))
    top = [max(x[j, 0] for j in range(6) if order[j] == one) for one in order]
    got = exp_below_largest(x, torch.tensor(order), torch.ones(6, 2, dtype=torch.bool))[:, 0]
    assert_close(got, (x[:, 0] - torch.stack(top)).exp())


def test_groups_in_rising_order_are_not_sorted_again(monkeypatch):
    """Sorting the ids costs as much as the rest of a comparison."""
    monkeypatch.setattr(torch, "unique", None)
    ids, row = number_groups(torch.tensor(ORDERS["rising"]))
    assert (ids.tolist(), row.tolist()) == ([2, 5, 7], [0, 0, 0, 1, 1, 2])
    with pytest.raises(TypeError):
        number_groups(torch.tensor(ORDERS["mixed"]))


def test_grpo_vectorized_is_another_name_of_group_relative():
    """Both accept the unequal groups that dynamic sampling leaves."""
    made = build(compose(["algorithm=dapo", "algorithm/advantage=grpo_vectorized"]).algorithm)
    assert made.advantage.func is group_relative
