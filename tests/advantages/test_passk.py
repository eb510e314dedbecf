"""The advantages for the best of k samples, against all subsets one by one."""

from itertools import combinations
from math import comb

import pytest
import torch
from records import rollout, scores
from torch.testing import assert_close

from tandem.advantages.passk import best_gap, pass_at_k, pkpo, pkpo_centred

PRECISION = {torch.float64: 1e-6, torch.float32: 1e-5}


def alone(estimate, total, known=None, **numbers):
    """The advantages of one group."""
    group = torch.zeros(len(total), dtype=torch.int64)
    rows = rollout(torch.ones(len(total), 1, dtype=torch.bool), group)
    return estimate(scores(total, known), rows, **numbers)[:, 0]


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize(("estimate", "name"), [(pkpo, "pkpo/s"), (pkpo_centred, "pkpo/loo")])
def test_pkpo_is_the_reference_one(vectors, estimate, name, dtype):
    got = alone(estimate, torch.tensor([1, 0, 0.5, 0.9], dtype=dtype), k=2)
    assert_close(got, vectors[name], atol=PRECISION[dtype], rtol=0.0, check_dtype=False)


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize("numbers", ["8_2_4", "8_1_4", "4_2_2", "8_5_4"])
def test_pass_at_k_is_the_reference_one(vectors, numbers, dtype):
    samples, right, k = map(int, numbers.split("_"))
    total = (torch.arange(samples) < right).to(dtype)
    got = alone(pass_at_k, total, k=k)
    good, bad = vectors[f"passk/{numbers}"][-2:]
    want = torch.where(total == 1, good, bad)
    assert_close(got, want, atol=PRECISION[dtype], rtol=0.0, check_dtype=False)


@pytest.mark.parametrize("right", range(7))
@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_pass_at_k_compares_the_sets_with_a_sample_to_all_sets(right, k):
    total = (torch.arange(6) < right).double()
    best = {s: max(total[list(s)]).item() for s in combinations(range(6), k)}
    values = torch.tensor([*best.values()], dtype=torch.float64)
    spread = values.std(correction=0)
    own = [torch.tensor([v for s, v in best.items() if i in s]).mean() for i in range(6)]
    want = [(o - values.mean()) / spread if spread > 0 else 0.0 for o in own]
    assert_close(alone(pass_at_k, total, k=k), torch.tensor(want, dtype=torch.float64))


@pytest.mark.parametrize("k", [1, 2, 3, 5, 7])
def test_pkpo_is_the_sum_over_all_sets(k):
    total = torch.randn(7, generator=torch.Generator().manual_seed(k), dtype=torch.float64)
    total[3] = total[5]
    sets = list(combinations(range(7), k))
    best = {s: max(total[list(s)]) for s in sets}
    want = [sum((best[s] for s in sets if i in s), torch.tensor(0.0)) for i in range(7)]
    assert_close(alone(pkpo, total, k=k), torch.stack(want).double() / comb(7, k))


@pytest.mark.parametrize("k", [2, 3, 5, 7])
def test_pkpo_centred_is_what_each_sample_adds_to_each_set(k):
    total = torch.randn(7, generator=torch.Generator().manual_seed(k), dtype=torch.float64)
    total[3] = total[5]
    sets = list(combinations(range(7), k))
    want = torch.zeros(7, dtype=torch.float64)
    for s in sets:
        for i in s:
            without = max(total[j] for j in s if j != i)
            want[i] += max(total[list(s)]) - without
    assert_close(alone(pkpo_centred, total, k=k), want / comb(7, k))


def test_groups_do_not_see_one_another():
    generator = torch.Generator().manual_seed(0)
    total = torch.randn(15, generator=generator, dtype=torch.float64)
    group = torch.tensor([3, 9, 9, 3, 3, 1, 9, 3, 9, 9, 3, 1, 1, 9, 3])
    rows = rollout(torch.ones(15, 1, dtype=torch.bool), group)
    for estimate in (pkpo, pkpo_centred):
        got = estimate(scores(total), rows, k=3)[:, 0]
        for g in (1, 3, 9):
            assert_close(got[group == g], alone(estimate, total[group == g], k=3))


def test_large_groups_do_not_overflow():
    """C(256, 128) is 6e75, past float32."""
    total = torch.arange(256.0)
    want = torch.tensor([sum(i - j for j in range(i)) for i in range(256)]) / comb(256, 2)
    assert_close(alone(pkpo_centred, total, k=2), want)
    best = sum(j * comb(j, 127) for j in range(256)) / comb(256, 128)  # each set has 128 samples
    assert alone(pkpo, total, k=128).sum().item() == pytest.approx(128 * best, rel=1e-5)
    got = alone(pass_at_k, (total == 7).float(), k=128)
    assert got[7].item() == pytest.approx(
        1.0
    )  # mu is one half: one right of 256, half of them seen
    assert_close(got.sum(), torch.tensor(0.0), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("estimate", "k"), [(pkpo, 4), (pkpo_centred, 4), (pass_at_k, 4)])
def test_a_group_with_fewer_than_k_scores_teaches_nothing(estimate, k):
    known = torch.tensor([True, True, False, True, False])
    assert (alone(estimate, torch.tensor([1.0, 0, 1, 0, 1]), known, k=k) == 0).all()


def test_two_best_samples_have_no_lead():
    got = alone(best_gap, torch.tensor([0.7, 0.1, 0.7]), scale=None)
    assert (got == 0).all()


def test_a_single_scored_sample_has_no_lead():
    known = torch.tensor([True, False, False])
    assert (alone(best_gap, torch.tensor([0.7, 0.1, 0.7]), known, scale=None) == 0).all()


def test_pass_at_k_refuses_degrees():
    with pytest.raises(ValueError, match="needs scores of 0 or 1"):
        alone(pass_at_k, torch.tensor([1.0, 0.5, 0.0]), k=2)
