"""Every estimator against the reference vectors, the laws they share, and loops."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from records import rollout, scores, with_whitening
from torch.testing import assert_close

from tandem.advantages.compose import Combined, Share, Standardised
from tandem.advantages.group import (
    batch_relative,
    batch_std,
    gpg,
    group_relative,
    leave_one_out,
    maxrl,
    opo,
    unbiased_std,
)
from tandem.advantages.parts import by_part, gdpo
from tandem.advantages.passk import best_gap, pass_at_k, pkpo, pkpo_centred
from tandem.stop import Stop

PRECISION = {torch.float64: 1e-6, torch.float32: 1e-5}
GROUPS = torch.tensor([0, 0, 0, 1, 1, 1])
BINARY = [1.0, 0.0, 1.0, 1.0, 1.0, 0.0]
grpo = partial(group_relative, scale=unbiased_std)
centred = partial(group_relative, scale=None)
lite_ppo = partial(group_relative, scale=batch_std, eps=1e-4)
halves = Combined({"own": Share(grpo, 0.5), "all": Share(batch_relative, 0.5)})


# The laws of each estimator. With one reward a part equals the total.
COMPARING = {
    "grpo": grpo,
    "centred": centred,
    "lite_ppo": lite_ppo,
    "leave_one_out": leave_one_out,
    "opo": opo,
    "gpg": gpg,
    "by_part": by_part,
    "gdpo": gdpo,
    "best_gap": partial(best_gap, scale=unbiased_std),
    "pkpo_centred": partial(pkpo_centred, k=2),
    "whitened": with_whitening(centred),
    "standardised": Standardised(opo),
}
ALL = COMPARING | {
    "maxrl": maxrl,
    "pkpo": partial(pkpo, k=2),
    "pass_at_k": partial(pass_at_k, k=2),
    "batch_relative": batch_relative,
    "combined": halves,
}
UNSHIFTED = ("whitened", "standardised", "pkpo", "batch_relative", "combined")
every = pytest.mark.parametrize("name", ALL)


def one_step(total, group=GROUPS):
    return scores(total), rollout(torch.ones(len(total), 1, dtype=torch.bool), group)


def check(got, want, dtype=torch.float64):
    assert got.dtype == dtype
    assert_close(got, want, atol=PRECISION[dtype], rtol=0.0, check_dtype=False)


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize(
    ("estimate", "total", "name"),
    [
        (lite_ppo, None, "grpo/batchstd"),
        (batch_relative, None, "reinforce/batch_mean_seq"),
        (maxrl, BINARY, "maxrl"),
        (Standardised(leave_one_out), None, "rloo_norm"),
        (partial(best_gap, scale=None), [1, 0, 0.5, 0.9, 1, 0], "passk/bestgap"),
        (partial(best_gap, scale=unbiased_std), [1, 0, 0.5, 0.9, 1, 0], "passk/bestgap_std"),
    ],
)
def test_values_are_the_reference_ones(vectors, estimate, total, name, dtype):
    total = vectors["in/R"] if total is None else torch.tensor(total)
    check(estimate(*one_step(total.to(dtype)))[:, 0], vectors[name], dtype)


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize(
    ("estimate", "name"), [(opo, "opo"), (with_whitening(centred), "rppb/adv")]
)
def test_values_that_depend_on_length_are_the_reference_ones(vectors, estimate, name, dtype):
    mask = vectors["in/M"].bool()
    got = estimate(scores(vectors["in/R"].to(dtype)), rollout(mask, GROUPS))
    want = vectors[name]
    check(got, want[:, None] * mask if want.ndim == 1 else want, dtype)


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
def test_gpg_counts_the_samples_of_groups_that_vary(vectors, dtype):
    """Nine samples, of which three tie: alpha is 9 / 6, the reference's 1.5."""
    total = torch.cat([vectors["in/R"], torch.ones(3, dtype=torch.float64)]).to(dtype)
    group = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    got = gpg(*one_step(total, group))[:, 0]
    check(got[:6], vectors["gpg/adv"], dtype)
    assert (got[6:] == 0).all()


def test_gpg_is_zero_where_no_group_varies():
    assert (gpg(*one_step(torch.ones(6))) == 0).all()


def test_the_population_form_of_whitening_differs_by_a_constant(vectors):
    mask = vectors["in/M"].bool()
    got = with_whitening(centred)(scores(vectors["in/R"]), rollout(mask, GROUPS))
    check(got * (23 / 22) ** 0.5, vectors["rppb/adv_bias"])


def case(seed=0, batch=12, groups=3):
    generator = torch.Generator().manual_seed(seed)
    length = torch.randint(1, 5, (batch, 1), generator=generator)
    total = torch.randint(0, 2, (batch,), generator=generator).double()
    total[:groups], total[groups : 2 * groups] = 1.0, 0.0  # every group varies
    return total, rollout(torch.arange(4) < length, torch.arange(batch) % groups)


@pytest.mark.parametrize("name", [name for name in COMPARING if name not in UNSHIFTED])
def test_a_bonus_for_a_whole_group_changes_nothing(name):
    total, rows = case()
    bonus = torch.tensor([5.0, -2.0, 0.1], dtype=torch.float64)[rows.group]
    if name == "lite_ppo":  # its scale is that of all groups, so only a bonus for all is free
        bonus = bonus[0]
    got, want = ALL[name](scores(total + bonus), rows), ALL[name](scores(total), rows)
    assert want.abs().max() > 0.1
    assert_close(got, want, atol=1e-9, rtol=0)


@every
def test_row_order_does_not_matter(name):
    total, rows = case()
    order = torch.randperm(len(total), generator=torch.Generator().manual_seed(1))
    shuffled = ALL[name](scores(total[order]), rollout(rows.mask[order], rows.group[order]))
    assert_close(shuffled, ALL[name](scores(total), rows)[order])


@every
def test_a_missing_score_is_as_if_never_sampled(name):
    total, rows = case()
    known = torch.ones(12, dtype=torch.bool)
    known[[4, 9]] = False
    got = ALL[name](scores(total, known), rows)
    alone = ALL[name](scores(total[known]), rollout(rows.mask[known], rows.group[known]))
    assert (got[~known] == 0).all()
    assert_close(got[known], alone)


@every
def test_a_batch_without_a_score_teaches_nothing(name):
    total, rows = case()
    assert (ALL[name](scores(total, torch.zeros(12, dtype=torch.bool)), rows) == 0).all()


@every
def test_steps_outside_the_mask_get_nothing(name):
    total, rows = case()
    rows = replace(rows, mask=rows.mask & (torch.arange(4) != 1))  # holes too
    got = ALL[name](scores(total), rows)
    assert (got[~rows.mask] == 0).all()
    assert got[rows.mask].abs().max() > 0.1


@pytest.mark.parametrize("name", [name for name in ALL if name != "pkpo"])
def test_a_tie_of_all_gives_exactly_nothing(name):
    _, rows = case()
    assert (ALL[name](scores(torch.ones(12) * 1.0), rows) == 0).all()


@pytest.mark.parametrize("name", [*(n for n in COMPARING if n not in UNSHIFTED), "maxrl"])
def test_a_group_that_ties_gets_exactly_nothing_beside_one_that_does_not(name):
    total = torch.tensor([0.3, 0.3, 0.3, 0.9, 0.1, 0.3])
    got = ALL[name](*one_step(total))
    assert (got[:3] == 0).all()
    assert got[3:].abs().max() > 0.1


def test_opo_weighs_the_baseline_by_trained_steps():
    total, rows = case(seed=3)
    steps = rows.mask.sum(1)
    for i, g in enumerate(rows.group.tolist()):
        peers = [j for j, other in enumerate(rows.group.tolist()) if other == g]
        baseline = sum(steps[j] * total[j] for j in peers) / sum(steps[j] for j in peers)
        assert_close(opo(scores(total), rows)[i, 0], total[i] - baseline)


def test_maxrl_refuses_a_negative_score():
    with pytest.raises(Stop, match="scored -1; use rewards of 0 and more"):
        maxrl(*one_step(torch.tensor([1.0, 0.0, -1.0, 1.0, 0.0, 0.0])))


def test_maxrl_is_zero_where_nothing_succeeds():
    assert (maxrl(*one_step(torch.zeros(6))) == 0).all()
