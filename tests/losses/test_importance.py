"""Corrections of steps that another policy sampled: reference values, worked examples, laws."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from records import coupled_batch
from torch.testing import assert_close

from tandem.contracts import facts_of
from tandem.losses import importance
from tandem.types import CoupledBatch

GAP = torch.tensor([0, 1, 2, 0, 3, 5])
EXACT = {"atol": 1e-6, "rtol": 0.0, "check_dtype": False}
BY_STEP = [
    (partial(importance.token_tis, ratio_max=torch.inf), "op/rho"),
    (importance.token_tis, "op/tis2"),
    (importance.icepop, "op/icepop.5_5"),
    (partial(importance.icepop, high=2.0), "op/icepop.5_2"),
]
BY_SAMPLE = [
    (partial(importance.sequence_tis, ratio_max=torch.inf), "op/seq"),
    (importance.sequence_tis, "op/seq_tis2"),
    (partial(importance.sequence_mask, low=0.5, high=2.0), "op/seq_mask.5_2"),
    (importance.sequence_rejection, "op/rs_seqsum_k1_.5_2/keep"),
]
ALL = [
    importance.token_tis,
    importance.sequence_tis,
    importance.icepop,
    importance.sequence_mask,
    importance.sequence_rejection,
    importance.geometric_rejection,
]


def batch_of(old, behaviour, mask, gap=None):
    """Only the fields that a correction reads; one version gap per sample."""
    gap = None if gap is None else gap[:, None].expand(mask.shape).float()
    return CoupledBatch(
        logp=old, advantages=torch.zeros_like(old), mask=mask, group=torch.zeros(len(mask)),
        old_logp=old, behaviour_logp=behaviour, version_gap=gap,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("correct", "name"), BY_STEP, ids=[name for _, name in BY_STEP])
def test_a_weight_of_a_step_is_the_reference_one(vectors, correct, name, dtype):
    assert_close(correct(coupled_batch(vectors, dtype)), vectors[name], **EXACT)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("correct", "name"), BY_SAMPLE, ids=[name for _, name in BY_SAMPLE])
def test_a_weight_of_a_sample_is_that_of_all_its_steps(vectors, correct, name, dtype):
    batch = coupled_batch(vectors, dtype)
    assert_close(correct(batch), vectors[name][:, None] * batch.mask, **EXACT)


def test_the_geometric_ratio_is_the_reference_one_and_decides_who_stays(vectors):
    ratio = importance.geometric_ratio(coupled_batch(vectors))
    assert_close(ratio[:, 0], vectors["op/geo"], **EXACT)
    kept = importance.geometric_rejection(coupled_batch(vectors), low=0.9, high=1.1)
    assert kept.any(1).tolist() == [True, True, False, True, False, True]
    assert set(kept.unique().tolist()) == {0.0, 1.0}


def test_staleness_decay_is_the_documented_weight_where_the_loss_has_no_ratio(vectors):
    batch = coupled_batch(vectors)
    batch = batch_of(importance.current(batch), batch.behaviour_logp, batch.mask, GAP)
    got = importance.staleness_decay(batch, decay=0.99)
    assert_close(got, vectors["flux/doc_w"], **EXACT)
    assert not got.requires_grad


def test_staleness_decay_by_hand():
    old, behaviour = torch.tensor([[2.0, 0.25, 1.0], [8.0, 1.0, 1.0]]).log(), torch.zeros(2, 3)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    batch = batch_of(old, behaviour, mask, torch.tensor([1, 2]))
    got = importance.staleness_decay(batch, decay=0.5)
    assert_close(got, torch.tensor([[1.0, 0.25, 0.0], [0.5, 0.25, 0.25]]))
    undecayed = importance.staleness_decay(batch, decay=1.0)
    assert_close(undecayed, torch.tensor([[2.0, 0.5, 0.0], [2.0, 1.0, 1.0]]))
    default = importance.staleness_decay(batch)
    assert_close(default, torch.tensor([[1.8, 0.45, 0.0], [1.62, 0.81, 0.81]]))


def test_the_log_linear_proximal_policy_is_the_reference_one(vectors):
    batch = coupled_batch(vectors)
    batch = batch_of(batch.logp, batch.behaviour_logp, batch.mask, GAP)
    got = importance.interpolate(batch)
    assert_close(got * batch.mask, vectors["areal/prox_loglinear"], **EXACT)
    assert not got.requires_grad
    ones, zeros = torch.ones(6, 1, dtype=torch.float64), torch.zeros(6, 1, dtype=torch.float64)
    share = importance.interpolate(batch_of(ones, zeros, ones.bool(), GAP))[:, 0]
    assert_close(share, vectors["areal/alpha"], **EXACT)


@pytest.mark.parametrize("correct", ALL, ids=lambda function: function.__name__)
def test_samples_of_the_policy_itself_count_fully(vectors, correct):
    batch = coupled_batch(vectors)
    assert_close(correct(replace(batch, behaviour_logp=batch.old_logp)), batch.mask.double())


@pytest.mark.parametrize("correct", ALL, ids=lambda function: function.__name__)
def test_what_stands_outside_the_mask_changes_nothing(vectors, correct):
    batch = coupled_batch(vectors)
    garbage = torch.tensor([[7.0], [-90.0], [torch.inf]]).repeat(2, 5)
    spoilt = replace(batch, old_logp=torch.where(batch.mask, batch.old_logp, garbage.double()))
    got = correct(spoilt)
    assert_close(got, correct(batch), atol=0, rtol=0)
    assert not got[~batch.mask].any()


@pytest.mark.parametrize("correct", ALL, ids=lambda function: function.__name__)
def test_a_policy_far_from_its_sampler_gets_a_finite_weight_without_gradient(correct):
    old = torch.tensor([[0.0, 0.0], [-400.0, 0.0]], requires_grad=True)
    behaviour = torch.tensor([[-400.0, 0.0], [0.0, 0.0]])
    got = correct(batch_of(old, behaviour, torch.ones(2, 2, dtype=torch.bool)))
    assert got.isfinite().all()
    assert not got.requires_grad


@pytest.mark.parametrize("correct", ALL, ids=lambda function: function.__name__)
def test_a_correction_says_what_it_reads(correct):
    assert facts_of(correct).reads == {"old_logp", "behaviour_logp"}
