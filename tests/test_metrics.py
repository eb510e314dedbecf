"""Metrics against the reference values, and the law that any cut of the rows gives the same."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from records import coupled_batch, rollout, scores
from torch.testing import assert_close

from tandem.algorithm.coupled import (
    fresh_mismatch,
    mismatch_metrics,
    policy_metrics,
    reference_metrics,
)
from tandem.contracts import batch_statistics_of, declare
from tandem.losses import importance
from tandem.losses.policy import ppo, reinforce
from tandem.metrics import (
    Max,
    Min,
    Sum,
    advantage_metrics,
    correlation,
    masked_mean,
    merge_metrics,
    own_metrics,
    reduce_metrics,
    reward_metrics,
)
from tandem.types import CoupledBatch, take

REFERENCE = {
    "actor/approx_kl_k1": "metric/approx_kl_k1",
    "actor/approx_kl_k2": "metric/approx_kl_k2",
    "actor/approx_kl_k3": "metric/approx_kl_k3",
    "actor/clip_frac": "metric/clip_frac_active",
    "actor/clip_frac_low": "metric/clip_low",
    "actor/clip_frac_high": "metric/clip_high",
    "actor/ratio_outside": "metric/clip_frac_outside",
    "actor/ratio_mean": "metric/ratio_mean",
    "actor/ratio_max": "metric/ratio_max",
    "actor/nll": "metric/neg_logp_mean",
    "rollout_corr/k1": "op/k1_mismatch",
    "rollout_corr/k3": "op/k3_mismatch",
    "rollout_corr/abs_logp_diff": "op/abs_logp_diff",
    "rollout_corr/chi2_token": "op/chi2_tok",
    "rollout_corr/chi2_seq": "op/chi2_seq",
    "rollout_corr/ess": "op/ess_frac",
}


def measure(batch):
    return (
        policy_metrics(batch)
        | reference_metrics(batch)
        | mismatch_metrics(batch)
        | own_metrics(ppo, batch)
        | importance.effect(batch, importance.token_tis(batch))
    )


def test_a_row_that_older_weights_began_says_nothing_of_the_newest():
    """Its later steps read the keys and values of the older ones."""
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[1, 2:] = False
    batch = CoupledBatch(
        logp=torch.zeros(3, 4), old_logp=torch.zeros(3, 4), advantages=torch.zeros(3, 4), mask=mask,
        group=torch.zeros(3, dtype=torch.int64),
        behaviour_logp=torch.tensor([[0.1] * 4, [0.4] * 4, [0.9] * 4]),
        version_gap=torch.tensor([[0.0] * 4, [0.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]]),
    )  # fmt: skip
    found = reduce_metrics(fresh_mismatch(batch))
    assert found["rollout_corr/abs_logp_diff_fresh"] == pytest.approx((4 * 0.1 + 2 * 0.4) / 6)


@pytest.mark.parametrize(("name", "reference"), REFERENCE.items())
def test_values_are_the_reference_ones(vectors, name, reference):
    value = reduce_metrics(measure(coupled_batch(vectors)))[name]
    assert value == pytest.approx(vectors[reference].item(), abs=1e-6)


def test_grpo_kl_is_to_the_reference_and_without_one_to_the_old_policy(vectors):
    batch = coupled_batch(vectors)
    alone = reduce_metrics(policy_metrics(batch))
    assert reduce_metrics(measure(batch))["actor/grpo_kl"] == pytest.approx(0.047578, abs=1e-6)
    assert alone["actor/grpo_kl"] == alone["actor/approx_kl_k3"]
    assert "actor/ref_kl" not in alone


def test_parts_of_a_bound_have_no_ratios_but_add_up_to_a_mean_in_nats(vectors):
    batch = coupled_batch(vectors)
    found = policy_metrics(batch, of_parts=True)
    assert {*found} == {"actor/nll", "actor/approx_kl_k1", "actor/log_ratio_max"}
    plain = reduce_metrics(policy_metrics(batch))
    assert reduce_metrics(found) == {name: plain[name] for name in found}


def test_advantages_are_described_by_step(vectors):
    mask = vectors["in/M"].bool()
    got = advantage_metrics(vectors["in/ADV"], mask)
    assert got["actor/adv_mean"] == pytest.approx(vectors["metric/adv_mean"].item(), abs=1e-6)
    assert got["actor/adv_std"] == pytest.approx(vectors["metric/adv_std_pop"].item(), abs=1e-6)


@pytest.mark.parametrize(
    "cut", [[[0, 1, 2, 3, 4, 5]], [[0], [1, 2, 3, 4, 5]], [[3, 1], [5], [0, 2, 4]]]
)
def test_any_cut_of_the_rows_gives_the_same(vectors, cut):
    batch = coupled_batch(vectors)
    whole, parts = measure(batch), {}
    for rows in cut:
        merge_metrics(parts, measure(take(batch, torch.tensor(rows))))
    assert reduce_metrics(parts) == pytest.approx(reduce_metrics(whole), abs=1e-12)


def test_a_loss_is_measured_under_the_numbers_it_was_bound_with(vectors):
    batch = coupled_batch(vectors)
    wide = reduce_metrics(own_metrics(partial(ppo, clip_low=0.9, clip_high=9.0), batch))
    assert set(wide.values()) == {0.0}
    assert own_metrics(reinforce, batch) == {}


def of_its_clip(batch, statistics, *, clip):
    return {"clip": masked_mean(clip * statistics, batch.mask)}


def of_its_power(batch, *, power):
    return batch.advantages**power


@declare(batch_statistics=of_its_power, metrics=of_its_clip)
def own_loss(batch, statistics, *, power=2, clip):
    return clip * statistics


def test_surveys_and_metrics_get_the_numbers_that_they_name(vectors):
    batch, loss = coupled_batch(vectors), partial(own_loss, clip=0.5)
    statistics = batch_statistics_of(loss)(batch)
    assert_close(statistics, batch.advantages.square())
    want = reduce_metrics({"clip": masked_mean(loss(batch, statistics), batch.mask)})
    assert reduce_metrics(own_metrics(loss, batch, statistics)) == want


def test_a_mean_over_nothing_is_left_out():
    nothing, one, two = torch.zeros(()), torch.tensor(1.0), torch.tensor(2.0)
    got = reduce_metrics(
        {"a": Sum(nothing, nothing), "b": Sum(one, two), "c": Max(two), "d": Min(one)}
    )
    assert got == {"b": 0.5, "c": 2.0, "d": 1.0}


def correlate(x, y, mask=None):
    mask = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
    return reduce_metrics({"r": correlation(x, y, mask)}).get("r")


def test_a_correlation_adds_up_over_any_cut_and_outside_the_mask_is_nothing():
    """Also far from 0, where squares are large compared with differences."""
    random = torch.Generator().manual_seed(3)
    x = 1000 + torch.randn(7, 5, generator=random)
    y = 0.5 * x + torch.randn(7, 5, generator=random)
    mask = torch.rand(7, 5, generator=random) < 0.7
    want = torch.corrcoef(torch.stack([x[mask], y[mask]]).double())[0, 1].item()
    assert 0.1 < want < 0.9
    assert correlate(x, y.where(mask, torch.nan), mask) == pytest.approx(want, abs=1e-9)
    parts = {}
    for rows in ([2], [0, 1, 6], [], [3, 4, 5]):
        merge_metrics(parts, {"r": correlation(x[rows], y[rows], mask[rows])})
    assert reduce_metrics(parts)["r"] == pytest.approx(want, abs=1e-9)
    line = torch.arange(4.0)
    assert correlate(line, 3 - 2 * line) == pytest.approx(-1)


def test_a_constant_goes_together_with_nothing():
    line, same = torch.arange(3.0), torch.full((3,), 0.3)
    assert correlate(line, same) is correlate(same, line) is None
    assert correlate(line, line, line > 5) is correlate(line[:1], line[:1]) is None


def test_missing_scores_are_left_out_of_the_mean():
    known = torch.tensor([True, True, True, False])
    rows = rollout(torch.ones(4, 1, dtype=torch.bool), torch.tensor([0, 0, 1, 1]))
    got = reward_metrics(scores(torch.tensor([1.0, 0.0, 0.5, 9.0]), known), rows)
    assert got["reward/mean"] == pytest.approx(0.5)
    assert got["reward/accuracy/mean"] == pytest.approx(0.5)


def test_a_group_with_one_known_score_carries_no_signal():
    known = torch.tensor([True, True, True, False])
    rows = rollout(torch.ones(4, 1, dtype=torch.bool), torch.tensor([0, 0, 1, 1]))
    got = reward_metrics(scores(torch.tensor([1.0, 0.0, 0.5, 9.0]), known), rows)
    assert got["reward/frac_zero_std"] == 0.5


def grade(part, group, length, known=None):
    """Metrics of samples with these values of the first reward."""
    rows = rollout(torch.ones(len(part), 9, dtype=torch.bool), torch.tensor(group))
    rows = replace(rows, length=torch.tensor(length))
    return reward_metrics(scores(torch.tensor(part), known), rows)


def test_groups_are_all_right_or_all_wrong_by_the_first_reward():
    group, length = [5, 5, 2, 2, 7, 7, 9, 9], [1, 2, 3, 4, 5, 6, 7, 8]
    part = [1.0, 1.5, 0.0, -1.0, 0.0, 1.0, 0.5, 0.9]
    got = grade(part, group, length)
    assert got["reward/frac_all_right"] == 1 / 4
    assert got["reward/frac_all_wrong"] == 1 / 4
    assert got["reward/pass@2"] == 2 / 4
    assert got["response/length_right"] == (1 + 2 + 6) / 3
    assert got["response/length_wrong"] == (3 + 4 + 5) / 3
    second = scores(torch.tensor(part))
    flat = torch.zeros(8)
    last = replace(second, parts={"first": flat, **second.parts})
    rows = rollout(torch.ones(8, 1, dtype=torch.bool), torch.tensor(group))
    assert reward_metrics(last, rows)["reward/frac_all_wrong"] == 1


def test_groups_are_judged_by_the_samples_that_have_a_score():
    known = torch.tensor([True, False, False, False, True, True])
    got = grade([1.0, 0.0, 1.0, 1.0, 0.0, 0.0], [0, 0, 1, 1, 2, 2], [9, 1, 1, 1, 2, 4], known)
    assert got["reward/frac_all_right"] == got["reward/frac_all_wrong"] == 1 / 2
    assert got["reward/pass@2"] == 1 / 2
    assert (got["response/length_right"], got["response/length_wrong"]) == (9, 3)


def test_a_reward_of_degrees_alone_calls_nothing_right_or_wrong():
    got = grade([0.2, 0.9, 0.5, 0.5], [0, 0, 1, 1], [1, 2, 3, 4])
    assert got["reward/frac_zero_std"] == 0.5
    assert not [name for name in got if "right" in name or "wrong" in name or "pass@" in name]


def test_single_samples_are_no_groups_and_lengths_of_nobody_are_left_out():
    got = grade([1.0, 1.0], [0, 1], [2, 4])
    assert got["response/length_right"] == 3
    assert not got.keys() & {"response/length_wrong", "reward/frac_all_right", "reward/pass@1"}


def test_the_norm_is_not_taken_in_one_pass():
    advantages = torch.full((1000, 1), 1e4) + torch.arange(1000.0)[:, None] * 1e-3
    got = advantage_metrics(advantages, torch.ones(1000, 1, dtype=torch.bool))
    assert_close(got["actor/adv_std"], advantages.double().std(correction=0).item())
