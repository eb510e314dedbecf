"""Oracles of the advantages: loops over the scored samples of one group in plain numbers."""

from dataclasses import replace
from functools import partial
from itertools import combinations
from math import ceil, comb, exp, sqrt

import pytest
import torch
from records import rollout, scores
from torch.testing import assert_close

from tandem.advantages.diversity import ByDistance
from tandem.advantages.group import group_relative, maxrl, unbiased_std
from tandem.advantages.passk import best_gap, pass_at_k, pkpo, pkpo_centred
from tandem.advantages.preference import win_rate
from tandem.advantages.tilted import wd1
from tandem.advantages.token_baseline import otb
from tandem.advantages.uncertainty import most_uncertain, uncertainty

# Each takes the scores of a group and gives the advantages.


def mean_of(numbers):
    return sum(numbers) / len(numbers)


def std_of(numbers):
    mean = mean_of(numbers)
    return sqrt(sum((x - mean) ** 2 for x in numbers) / (len(numbers) - 1))


def maxrl_of(rewards):
    mean = mean_of(rewards)
    return [(r - mean) / mean if mean else 0.0 for r in rewards]


def best_gap_of(rewards, divided=False):
    if len(rewards) < 2:
        return [0.0] * len(rewards)
    second, first = sorted(rewards)[-2:]
    lead = (first - second) / (std_of(rewards) + 1e-6 if divided else 1)
    return [lead * (r == first) for r in rewards]


def pass_at_k_of(rewards, k):
    number, wrong = len(rewards), rewards.count(0)
    if number < k:
        return [0.0] * number
    mu = 1 - comb(wrong, k) / comb(number, k)
    sd = sqrt(mu * (1 - mu))
    if sd == 0:
        return [0.0] * number
    bad = (1 - mu - comb(wrong - 1, k - 1) / comb(number - 1, k - 1)) / sd
    return [(1 - mu) / sd if r else bad for r in rewards]


def pkpo_of(rewards, k, centred):
    number, got = len(rewards), [0.0] * len(rewards)
    for chosen in combinations(range(number), k):
        for i in chosen:
            others = [rewards[j] for j in chosen if j != i]
            without = max(others) if centred else 0.0
            got[i] += (max([*others, rewards[i]]) - without) / comb(number, k)
    return got


def win_rate_of(rewards):
    if len(rewards) < 2:
        return [0.0] * len(rewards)
    rates = []
    for i, mine in enumerate(rewards):
        others = [r for j, r in enumerate(rewards) if j != i]
        rates.append(mean_of([1.0 if mine > r else 0.5 if mine == r else 0.0 for r in others]))
    return [(rate - mean_of(rates)) / (std_of(rates) + 1e-6) for rate in rates]


def wd1_of(rewards, psi):
    """Times the group size, because the published loss is a sum over the group."""
    up = [exp(psi * (r - mean_of(rewards))) for r in rewards]
    down = [exp(-psi * (r - mean_of(rewards))) for r in rewards]
    return [len(rewards) * (u / sum(up) - d / sum(down)) for u, d in zip(up, down, strict=True)]


GROUP = [0, 1, 0, 2, 1, 0, 3, 1, 0, 3, 1, 0, 1, 0, 3, 1]
KNOWN = torch.tensor([i not in (5, 7, 9) for i in range(16)])
MASK = torch.tensor([[(3 * i + 2 * t) % 5 != 0 and t <= i % 4 + 1 for t in range(5)]
                     for i in range(16)])  # fmt: skip
MASK[11] = False  # a scored sample without a trained step


def case(binary=False, **known):
    """Groups of 6, 6, 1 and 3 samples in any order, of which three samples have no score.

    The last group ties; in others some samples tie.
    """
    generator = torch.Generator().manual_seed(3)
    total = torch.randint(1, 9, (16,), generator=generator).double() / 8
    total[14] = total[6]
    if binary:
        total = (total > 0.5).double()
        total[[6, 14]] = 0
    total[~KNOWN] = torch.nan
    return scores(total, KNOWN), rollout(MASK, torch.tensor(GROUP), **known)


def by_group(oracle, judged):
    """The oracle applied to each group, 0 without a score: [B]."""
    want = torch.zeros(16, dtype=torch.float64)
    for group in set(GROUP):
        rows = [i for i in range(16) if GROUP[i] == group and KNOWN[i]]
        got = oracle([judged.total[i].item() for i in rows])
        want[rows] = torch.tensor(got, dtype=torch.float64)
    return want


ORACLES = {
    "maxrl": (maxrl_of, maxrl),
    "best_gap": (best_gap_of, partial(best_gap, scale=None)),
    "best_gap_std": (partial(best_gap_of, divided=True), partial(best_gap, scale=unbiased_std)),
    "pass_at_2": (partial(pass_at_k_of, k=2), partial(pass_at_k, k=2)),
    "pass_at_4": (partial(pass_at_k_of, k=4), partial(pass_at_k, k=4)),
    "pkpo": (partial(pkpo_of, k=2, centred=False), partial(pkpo, k=2)),
    "pkpo_centred": (partial(pkpo_of, k=3, centred=True), partial(pkpo_centred, k=3)),
    "win_rate": (win_rate_of, win_rate),
    "wd1": (partial(wd1_of, psi=1.7), partial(wd1, psi=1.7)),
}


@pytest.mark.parametrize("name", ORACLES)
def test_an_advantage_is_what_a_loop_over_one_group_says(name):
    oracle, estimate = ORACLES[name]
    judged, rows = case(binary="pass_at" in name)
    want = by_group(oracle, judged)
    assert want[KNOWN].any()
    assert_close(estimate(judged, rows), want[:, None] * MASK, atol=1e-9, rtol=0)


def otb_of(rewards, tokens):
    """`tokens`: (p, sum p^2) of each sample's trained steps, in order."""
    energy = [
        [sum(1 - 2 * p + squares for p, squares in own[: t + 1]) for t in range(len(own))]
        for own in tokens
    ]
    got = []
    for mine, own in zip(rewards, energy, strict=True):
        got.append([])
        for t in range(len(own)):
            have = [(e[t], r) for e, r in zip(energy, rewards, strict=True) if len(e) > t]
            baseline = sum(w * r for w, r in have) / sum(w for w, _ in have)
            got[-1].append(mine - baseline if len(have) > 1 else 0.0)
    return got


def test_a_token_baseline_is_what_a_loop_over_samples_and_steps_says():
    generator = torch.Generator().manual_seed(1)
    probability = torch.rand(16, 5, generator=generator, dtype=torch.float64) * 0.9 + 0.05
    squares = probability.square() + (1 - probability).square() / 7
    judged, rows = case(old_logp=probability.log() * MASK, sum_pi_squared=squares * MASK)
    got = otb(judged, rows)
    want = torch.zeros(16, 5, dtype=torch.float64)
    for group in set(GROUP):
        known = [i for i in range(16) if GROUP[i] == group and KNOWN[i]]
        tokens = [
            [(probability[i, t].item(), squares[i, t].item()) for t in range(5) if MASK[i, t]]
            for i in known
        ]
        found = otb_of([judged.total[i].item() for i in known], tokens)
        for i, own in zip(known, found, strict=True):
            want[i, MASK[i]] = torch.tensor(own, dtype=torch.float64)
    assert want.any(1).sum() > 5
    assert_close(got, want, atol=1e-9, rtol=0)


def beaten_of(values, row):
    """The share of its group, itself included, that a row beats. Samples without any score are left
    out, even if an auxiliary reward scored them."""
    rows = [i for i in range(16) if GROUP[i] == GROUP[row] and KNOWN[i] and values[i] is not None]
    return sum(values[row] > values[i] for i in rows) / len(rows)


def test_a_gate_and_the_pay_for_distance_are_what_a_loop_over_samples_says():
    """GARDO: three rewards and a distance, each missing for other samples."""
    generator = torch.Generator().manual_seed(4)
    values = torch.rand(4, 16, generator=generator, dtype=torch.float64)
    values[0, ~KNOWN] = values[1, [0, 12]] = values[2, [0, 3]] = values[3, [4, 8]] = torch.nan
    key = torch.randperm(16, generator=generator)
    rows = rollout(MASK, torch.tensor(GROUP), key=key)
    parts = dict(zip(("proxy", "first", "second", "far"), values, strict=True))
    judged = replace(scores(values[0], KNOWN), parts=parts)
    proxy, *others, far = ([None if x != x else x for x in row] for row in values.tolist())
    want = {}
    for row in range(16):
        if proxy[row] is None:
            continue
        doubts = [beaten_of(own, row) for own in others if own[row] is not None]
        want[row] = beaten_of(proxy, row) - (mean_of(doubts) if doubts else 0)
    got = uncertainty(judged, rows, proxy="proxy", auxiliary=["first", "second"])
    assert got.isnan().tolist() == [row not in want for row in range(16)]
    assert got[KNOWN].tolist() == pytest.approx([*want.values()], abs=1e-9)
    for share in (0.1, 0.3, 0.8):
        sure = sorted((-u, key[row].item(), row) for row, u in want.items() if u >= 0)
        held = {row for *_, row in sure[: ceil(share * 16)]}
        gate = most_uncertain(
            judged, rows, proxy="proxy", auxiliary=["first", "second"], share=share
        )
        assert set(gate.nonzero()[:, 0].tolist()) == held
    plain = partial(group_relative, scale=None)
    paid = ByDistance(of=plain, distance="far")(judged, rows)
    for row, advantages in enumerate(plain(judged, rows)):
        of_group = [far[i] for i in range(16) if GROUP[i] == GROUP[row] and far[i] is not None]
        for t in range(5):
            a = advantages[t].item()
            more = far[row] / mean_of(of_group) if a > 0 and far[row] is not None else 1
            assert paid[row, t].item() == pytest.approx(a * more, abs=1e-9)
