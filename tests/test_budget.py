"""Rows divided into passes by a budget."""

import pytest
import torch

from tandem.experience import Budget, shares


def random_rows(seed):
    torch.manual_seed(seed)
    count = int(torch.randint(1, 60, ()))
    return (torch.randn(count) * 0.9 + 3).exp().long().clamp(1, 400), torch.arange(count) // 4


@pytest.mark.parametrize("whole_groups", [False, True])
@pytest.mark.parametrize(
    "budget",
    [
        Budget(max_tokens=200, packed=True), Budget(max_tokens=200),
        Budget(rows=8, packed=True), Budget(rows=8), Budget(packed=True),
    ],
    ids=str,
)  # fmt: skip
def test_every_row_is_in_one_part_that_fits_or_holds_one_unit(budget, whole_groups):
    for seed in range(25):
        cost, group = random_rows(seed)
        parts = budget.cut(cost, group if whole_groups else None)
        assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(cost)))
        units = group if whole_groups else torch.arange(len(cost))
        for part in parts:
            held = torch.isin(units, units[part])
            assert int(held.sum()) == len(part)  # no unit is split
            alone = len(units[part].unique()) == 1
            steps = cost[part].sum() if budget.packed else len(part) * cost[part].max()
            assert alone or budget.max_tokens is None or steps <= budget.max_tokens
            assert alone or budget.rows is None or len(part) <= budget.rows


def test_packed_rows_are_charged_for_themselves():
    cost = torch.tensor([100, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10])
    sizes = [sorted(cost[part].tolist()) for part in Budget(max_tokens=100, packed=True).cut(cost)]
    assert sizes == [[100], [10] * 10]
    assert len(Budget(max_tokens=100).cut(cost)) == 2
    assert len(Budget(max_tokens=200, packed=True).cut(cost)) == 1
    assert len(Budget(max_tokens=200).cut(cost)) == 2


def test_parts_are_balanced_and_as_few_as_can_be():
    for seed in range(25):
        cost, _ = random_rows(seed)
        cost = cost.clamp(max=200)
        parts = Budget(max_tokens=1000, packed=True).cut(cost)
        sums = torch.stack([cost[part].sum() for part in parts])
        assert len(parts) <= -(-int(cost.sum()) // 1000) + 1
        assert sums.max() - sums.min() <= cost.max()


def test_the_same_rows_are_cut_the_same_way():
    cost = torch.tensor([3, 3, 4, 3, 3, 4])
    cuts = [[p.tolist() for p in Budget(max_tokens=10, packed=True).cut(cost)] for _ in range(2)]
    assert cuts[0] == cuts[1] == [[0, 2, 3], [1, 4, 5]]  # among equal sizes the first comes first


def test_a_row_over_the_budget_stands_alone():
    cost = torch.tensor([7, 50, 3, 60])
    parts = [part.tolist() for part in Budget(max_tokens=20, packed=True).cut(cost)]
    assert sorted(map(sorted, parts)) == [[0, 2], [1], [3]]


def test_no_rows_are_no_parts():
    assert Budget(max_tokens=8, packed=True).cut(torch.tensor([], dtype=torch.int64)) == []


def test_shares_by_hand():
    """4 and 3 start a part each; 3 goes to the smaller one, then 2 to the smaller one of these."""
    assert shares([3, 2, 4, 3], 2) == [[2, 1], [0, 3]]
    assert shares([5, 5, 5, 1], 2, most=2) == [[0, 2], [1, 3]]
