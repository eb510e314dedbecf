"""Preference losses: the reference values, formulas of single pairs, and laws."""

from dataclasses import replace
from functools import partial
from math import exp, log, log1p

import pytest
import torch
from pairs import random_pairs, reference_pairs
from torch.testing import assert_close

from tandem.contracts import batch_statistics_of, facts_of
from tandem.losses import reduction
from tandem.losses.kto import kto, mismatched_kl
from tandem.losses.pairs import of_pairs, reward_of
from tandem.losses.preference import (
    apo_zero,
    dpo,
    exo,
    hinge,
    ipo,
    log_odds,
    nca,
    orpo,
    robust,
    simpo,
    sppo_hard,
)
from tandem.metrics import merge_metrics, own_metrics, reduce_metrics
from tandem.types import map_fields, pad_steps, take

PRECISION = {torch.float64: 1e-6, torch.float32: 1e-5}
by_mean_step = partial(dpo, length_norm=True)
without_reference = partial(simpo, beta=0.1, gamma=0.0, length_norm=False)
VECTORS = {
    "dpo/sigmoid": dpo,
    "dpo/cdpo.1": partial(dpo, label_smoothing=0.1),
    "dpo/robust.1": robust,
    "dpo/hinge": hinge,
    "dpo/ipo_sum": partial(ipo, length_norm=False),
    "dpo/ipo_mean": ipo,
    "dpo/sigmoid_norm": by_mean_step,
    "dpo/ref_free": without_reference,
    "dpo/exo.001": exo,
    "dpo/nca": nca,
    "dpo/sppo_hard": sppo_hard,
    "dpo/apo_zero": apo_zero,
    "simpo/b2_g.5": simpo,
    "simpo/b2.5_g1.375": partial(simpo, beta=2.5, gamma=1.375),
    "orpo/total_b.1": orpo,
    "kto/z.2": lambda batch: kto(batch, torch.full_like(batch.logp, 0.2)),
}


def mean_over_pairs(loss, batch):
    return (loss(batch) * reduction.sequence_mean(batch.mask)).sum()


def close_to(dtype):
    return {"atol": PRECISION[dtype], "rtol": PRECISION[dtype], "check_dtype": False}


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize(("name", "loss"), VECTORS.items(), ids=VECTORS)
def test_values_are_the_reference_ones(vectors, name, loss, dtype):
    value = mean_over_pairs(loss, reference_pairs(dtype))
    assert_close(value.detach(), vectors[name], **close_to(dtype))


def test_margins_are_the_reference_ones(vectors):
    """Margins of summed log ratios, the reward of DPO at beta 1."""
    batch = reference_pairs()
    reward = reward_of(partial(dpo, beta=1.0))(batch)
    chosen, rejected = (side[::2, 0].detach() for side in of_pairs(reward, batch))
    assert_close(chosen - rejected, vectors["dpo/delta"], atol=1e-6, rtol=0)


def test_the_odds_of_orpo_are_the_reference_ones(vectors):
    batch = reference_pairs()
    mean = (batch.logp.sum(1) / batch.mask.sum(1)).detach()
    assert_close(log_odds(mean[::2]) - log_odds(mean[1::2]), vectors["orpo/logodds"])
    part = mean_over_pairs(partial(orpo, odds=1.0), batch) - mean_over_pairs(
        partial(orpo, odds=0.0), batch
    )
    assert_close(part.detach(), vectors["orpo/or_loss"])


def test_metrics_are_the_reference_ones(vectors):
    got = reduce_metrics(own_metrics(dpo, reference_pairs()))
    want = {
        "accuracy": "dpo/acc", "margin": "dpo/margin", "chosen_reward": "dpo/chosen_reward",
        "rejected_reward": "dpo/rejected_reward",
    }  # fmt: skip
    for name, key in want.items():
        assert got[f"preference/{name}"] == pytest.approx(vectors[key].item(), abs=1e-6)
    assert got["preference/chosen_logp"] == pytest.approx(-10)
    assert got["preference/rejected_logp"] == pytest.approx(-32.5 / 3)


# One pair in plain numbers: log p and log p_ref of its rows, and how many steps they have.


def sigmoid(x):
    return 1 / (1 + exp(-x))


def ls(x):
    return log(sigmoid(x))


def exo_of(c, l):
    p, q = sigmoid(0.1 * (c - l)), 0.999
    return p * log(p / q) + (1 - p) * log((1 - p) / (1 - q))


def orpo_of(w, wn, l, ln):
    p, q = exp(w / wn), exp(l / ln)
    return -w / wn + 0.1 * log1p(q / (1 - q) * (1 - p) / p)


ORACLES = {
    "dpo": (dpo, lambda c, l: -ls(0.1 * (c - l))),
    "cdpo": (
        partial(dpo, label_smoothing=0.2),
        lambda c, l: -0.8 * ls(0.1 * (c - l)) - 0.2 * ls(0.1 * (l - c)),
    ),
    "robust": (robust, lambda c, l: (-0.9 * ls(0.1 * (c - l)) + 0.1 * ls(0.1 * (l - c))) / 0.8),
    "hinge": (hinge, lambda c, l: max(0, 1 - 0.1 * (c - l))),
    "ipo": (partial(ipo, length_norm=False), lambda c, l: (c - l - 5) ** 2),
    "nca": (nca, lambda c, l: -ls(0.1 * c) - (ls(-0.1 * c) + ls(-0.1 * l)) / 2),
    "exo": (exo, exo_of),
    "sppo": (sppo_hard, lambda c, l: (c - 5) ** 2 + (l + 5) ** 2),
    "apo_zero": (apo_zero, lambda c, l: 1 - sigmoid(0.1 * c) + sigmoid(0.1 * l)),
}
ALONE = {
    "simpo": (simpo, lambda w, wn, l, ln: -ls(2 * (w / wn - l / ln) - 0.5)),
    "orpo": (orpo, orpo_of),
}


def pairs_in(batch):
    """Rows of each pair, found by a loop."""
    for group in batch.group.unique():
        rows = (batch.group == group).nonzero()[:, 0].tolist()
        sign = {round(batch.advantages[row, 0].item()): row for row in rows}
        if 1 in sign:
            yield sign[1], sign[-1]


@pytest.mark.parametrize(("loss", "oracle"), ORACLES.values(), ids=ORACLES)
def test_a_pair_is_worth_what_its_formula_says_on_both_of_its_rows(loss, oracle):
    batch = random_pairs()
    value, ratio = loss(batch), (batch.logp - batch.ref_logp).sum(1).tolist()
    for chosen, rejected in pairs_in(batch):
        want = oracle(ratio[chosen], ratio[rejected])
        for row in (chosen, rejected):
            steps = value[row][batch.mask[row]]
            assert_close(steps, torch.full_like(steps, want))


@pytest.mark.parametrize(("loss", "oracle"), ALONE.values(), ids=ALONE)
def test_without_a_reference_mean_steps_are_compared(loss, oracle):
    batch = random_pairs()
    value, total, steps = loss(batch), batch.logp.sum(1).tolist(), batch.mask.sum(1).tolist()
    for chosen, rejected in pairs_in(batch):
        want = oracle(total[chosen], steps[chosen], total[rejected], steps[rejected])
        assert value[chosen, 0].item() == pytest.approx(want, abs=1e-9)
        assert value[rejected, 0].item() == pytest.approx(want, abs=1e-9)


PAIRED = {name: loss for name, loss in VECTORS.items() if not name.startswith("kto")}
every_loss = pytest.mark.parametrize("loss", PAIRED.values(), ids=PAIRED)


def gradient_of(loss, batch):
    return torch.autograd.grad(mean_over_pairs(loss, batch), batch.logp)[0]


@every_loss
def test_the_gradient_is_that_of_finite_differences(loss):
    batch = random_pairs(pairs=3)
    logp = batch.logp.detach()

    def value(x):
        return mean_over_pairs(loss, replace(batch, logp=torch.where(batch.mask, x, 0)))

    assert torch.autograd.gradcheck(value, logp.requires_grad_())


def test_the_gradient_of_dpo_is_the_one_its_paper_derives():
    """-beta sigmoid(-beta D) on every step of the chosen row, the opposite on the rejected one."""
    batch = random_pairs()
    got, ratio = gradient_of(dpo, batch), (batch.logp - batch.ref_logp).sum(1)
    pairs = list(pairs_in(batch))
    want = torch.zeros_like(got)
    for chosen, rejected in pairs:
        pull = 0.1 * torch.sigmoid(-0.1 * (ratio[chosen] - ratio[rejected])) / 9  # one more group
        want[chosen], want[rejected] = -pull, pull
    assert_close(got, want * batch.mask)


def test_exchanging_chosen_and_rejected_turns_the_sign_of_the_margin():
    batch = random_pairs()
    there = replace(batch, advantages=-batch.advantages)
    here, back = (reduce_metrics(own_metrics(dpo, x)) for x in (batch, there))
    assert here["preference/margin"] == pytest.approx(-back["preference/margin"])
    assert here["preference/accuracy"] == pytest.approx(1 - back["preference/accuracy"])
    # softplus(-x) - softplus(x) = -x
    margin = 0.1 * 8 / 9 * (here["preference/margin"] / 0.1)
    gap = mean_over_pairs(dpo, batch) - mean_over_pairs(dpo, there)
    assert gap.item() == pytest.approx(-margin)


def test_equal_rows_cost_log_2_and_label_smoothing_is_not_forgotten():
    batch = random_pairs()
    even = replace(batch, logp=batch.ref_logp.clone().requires_grad_())
    assert dpo(even)[even.advantages != 0].detach().unique().tolist() == pytest.approx([log(2)])
    smooth = mean_over_pairs(partial(dpo, label_smoothing=0.1), batch)
    assert smooth.item() != pytest.approx(mean_over_pairs(dpo, batch).item(), abs=1e-3)
    turned = replace(batch, advantages=-batch.advantages)
    half = partial(dpo, label_smoothing=0.5)
    assert_close(mean_over_pairs(half, batch), mean_over_pairs(half, turned))


@every_loss
def test_a_row_without_preference_is_nothing_and_rows_may_stand_in_any_order(loss):
    batch = random_pairs()
    assert facts_of(loss).zero_at_zero_advantage
    assert facts_of(loss).whole_groups
    quiet = (batch.advantages == 0).all(1)
    assert not loss(batch)[quiet].any()
    order = torch.randperm(len(quiet), generator=torch.Generator().manual_seed(1))
    assert_close(loss(take(batch, order)), loss(batch)[order])
    assert not gradient_of(loss, batch)[quiet].any()


@every_loss
def test_whole_pairs_may_be_cut_from_one_another(loss):
    batch, parts = random_pairs(), {}
    for group in batch.group.unique():
        rows = (batch.group == group).nonzero()[:, 0]
        assert_close(loss(take(batch, rows)), loss(batch)[rows])
        merge_metrics(parts, own_metrics(loss, take(batch, rows)))
    assert reduce_metrics(parts) == pytest.approx(reduce_metrics(own_metrics(loss, batch)))


@every_loss
def test_padding_and_rows_without_a_step_change_nothing(loss):
    batch = random_pairs()
    longer = map_fields(batch, lambda x: x if x.ndim == 1 else pad_steps(x, 9))
    empty = map_fields(take(longer, torch.zeros(1, dtype=torch.int64)), torch.zeros_like)
    joined = map_fields(longer, lambda x, y: torch.cat([x, y]), empty)
    assert_close(loss(joined)[:-1, :6], loss(batch))
    got = gradient_of(loss, joined)
    assert got.isfinite().all()
    assert_close(gradient_of(loss, longer)[:, :6], gradient_of(loss, batch))


@every_loss
def test_a_loss_of_pairs_reads_only_what_it_declares(loss):
    batch = random_pairs()
    unread = {} if "ref_logp" in facts_of(loss).reads else {"ref_logp": None}
    assert_close(loss(replace(batch, **unread)), loss(batch), atol=0, rtol=0)


@every_loss
@pytest.mark.parametrize("logp", [-400.0, -1e-9, 0.0])
def test_a_policy_that_is_sure_or_far_off_still_has_finite_numbers(loss, logp):
    batch = random_pairs()
    far = torch.where(batch.mask & (batch.advantages > 0), logp, batch.logp.detach()).float()
    batch = replace(batch, logp=far.requires_grad_(), ref_logp=batch.ref_logp.float())
    assert loss(batch).isfinite().all()
    assert gradient_of(loss, batch).isfinite().all()


@pytest.mark.parametrize("rows", [[0], [0, 1, 1], [0, 0, 1]], ids=["none", "two bad", "two good"])
def test_a_row_that_has_not_one_partner_is_refused(rows):
    batch = take(reference_pairs(), torch.tensor(rows))
    with pytest.raises(ValueError, match=r"group 0 has \d partners; set algorithm/advantage"):
        dpo(batch)


def test_a_row_that_cannot_count_needs_no_partner():
    batch = take(reference_pairs(), torch.tensor([0]))
    idle = map_fields(batch, torch.zeros_like)
    assert not dpo(replace(idle, logp=idle.logp.requires_grad_())).any()
    assert reduce_metrics(own_metrics(dpo, idle)) == {}


def test_evaluation_reads_the_reward_that_a_loss_trains():
    batch = random_pairs()
    ratio = (batch.logp - batch.ref_logp).sum(1, keepdim=True)
    mean = batch.logp.sum(1, keepdim=True) / batch.mask.sum(1, keepdim=True)
    assert_close(reward_of(partial(dpo, beta=0.3))(batch), 0.3 * ratio)
    assert_close(reward_of(kto)(batch), 0.1 * ratio)
    assert_close(reward_of(partial(simpo, beta=2.5))(batch), 2.5 * mean)
    assert_close(reward_of(orpo)(batch), 0.1 * mean)


# KTO: rows by themselves, against the KL of mismatched ones.


def with_mismatched(logp):
    """The reference pairs and, for each group, a mismatched row with that log ratio."""
    batch = reference_pairs()
    odd = map_fields(take(batch, torch.tensor([0, 2, 4])), torch.clone)
    steps = odd.mask.sum(1, keepdim=True)
    ratio = torch.tensor(logp, dtype=torch.float64)[:, None] / steps
    odd = replace(odd, advantages=0 * odd.advantages, logp=(odd.ref_logp + ratio) * odd.mask)
    joined = map_fields(batch, lambda x, y: torch.cat([x, y]), odd)
    return replace(joined, baseline=torch.tensor([False] * 6 + [True] * 3))


def test_kto_measures_rewards_against_the_kl_of_mismatched_rows(vectors):
    batch = with_mismatched([0.5, 0.3, -0.2])
    statistics = batch_statistics_of(kto)(batch)
    assert_close(statistics, torch.full_like(batch.logp, 0.2))
    weight = reduction.sequence_mean(batch.mask & ~batch.baseline[:, None])
    value = (kto(batch, statistics) * weight).sum()
    assert_close(value, vectors["kto/z.2"], atol=1e-6, rtol=0)
    got = reduce_metrics(own_metrics(kto, batch, statistics))
    assert got["preference/mismatched_kl"] == pytest.approx(0.2)
    assert got["preference/chosen_reward"] == pytest.approx(-0.01)
    assert got["preference/rejected_reward"] == pytest.approx(-1.3 / 30)


def test_a_kl_below_zero_is_an_estimate_that_is_cut_off():
    assert not mismatched_kl(with_mismatched([0.5, 0.3, -1.2])).any()


def test_kto_weighs_good_and_bad_rows():
    batch = with_mismatched([0.5, 0.3, -0.2])
    statistics = batch_statistics_of(kto)(batch)
    plain, uneven = kto(batch, statistics), kto(batch, statistics, desirable=2.0, undesirable=0.5)
    assert_close(uneven[:6:2], 2 * plain[:6:2])
    assert_close(uneven[1:6:2], 0.5 * plain[1:6:2])
    assert not plain[6:].any()
