"""Every policy loss, value and gradient, against the reference vectors."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from records import coupled_batch
from torch.testing import assert_close

from tandem.config import build, compose
from tandem.losses import importance, reduction
from tandem.losses.policy import nll, ppo, ratio_of, reinforce
from tandem.losses.sequence import gmpo, gspo, gspo_token, vespo
from tandem.losses.soft_clip import cispo, dro, sapo
from tandem.losses.trust_region import binary_kl, dppo, dppo_pulled, total_variation

PRECISION = {torch.float64: 1e-6, torch.float32: 1e-5}
MEAN, SUM, TOKENS = reduction.sequence_mean, reduction.sequence_sum, reduction.token_mean
wide = {"clip_low": 0.2, "clip_high": 0.28}


VECTORS = [
    (partial(ppo, ratio_max=3.0), TOKENS, "ppo/dual3"),
    (partial(ppo, ratio_max=1.5), TOKENS, "ppo/two_sided_delta4"),
    (gspo, MEAN, "gspo/3e-4_4e-4"),
    (partial(gspo, **wide), MEAN, "gspo/.2_.28"),
    (partial(gspo_token, **wide), MEAN, "gspo_token/.2_.28"),
    (partial(gspo_token, **wide), TOKENS, "gspo_token/.2_.28/token-mean"),
    (partial(gspo, **wide), SUM, "luspo/.2_.28"),
    (gmpo, MEAN, "gmpo"),
    (vespo, TOKENS, "vespo"),
    (partial(cispo, ratio_max=1.28), TOKENS, "cispo/lo1_hi.28"),
    (cispo, TOKENS, "cispo/abs_max5"),
    (sapo, MEAN, "sapo"),
    (dro, TOKENS, "dro/b.1"),
    (dppo, TOKENS, "dppo_tv/.15"),
    (partial(dppo, too_far=binary_kl), TOKENS, "dppo_tv/.15"),  # the same steps are masked
]


def check(vectors, name, value, logp, dtype=torch.float64, kind="grad"):
    (gradient,) = torch.autograd.grad(value, logp)
    close = {"atol": PRECISION[dtype], "rtol": 0.0, "check_dtype": False}
    assert_close(value.detach(), vectors[f"{name}/loss"], **close)
    gradient = gradient if kind == "grad" else gradient.sum(1)
    assert_close(gradient, vectors[f"{name}/{kind}"], **close)


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize(("loss", "weigh", "name"), VECTORS, ids=[name for *_, name in VECTORS])
def test_value_and_gradient_are_the_reference_ones(vectors, loss, weigh, name, dtype):
    batch = coupled_batch(vectors, dtype)
    check(vectors, name, (loss(batch) * weigh(batch.mask)).sum(), batch.logp, dtype)


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize("kl", ["k2", "k3"])
def test_the_preset_grpo_weighs_its_kl_as_its_loss(vectors, kl, dtype):
    """Inside the mean over each sample, as published and in TRL."""
    beside = ("algorithm.kl.coef=0.04", "algorithm.entropy.coef=0", "~recipe")
    cfg = compose(["algorithm=grpo", f"algorithm/kl={kl}", *beside])
    batch, terms = coupled_batch(vectors, dtype), build(cfg.algorithm).training_objective.terms
    parts = [t.coef * (t.loss(batch) * t.weights(batch.mask)).sum() for t in terms.values()]
    check(vectors, f"grpo+{kl}/.04", sum(parts), batch.logp, dtype)


def test_a_kl_may_keep_the_token_mean(vectors):
    chosen = ("algorithm/weights@algorithm.kl.weights=token_mean", "algorithm.kl.coef=0.04")
    terms = build(compose(["algorithm=grpo", *chosen]).algorithm).training_objective.terms
    mask = coupled_batch(vectors).mask
    assert_close(terms["kl"].weights(mask), mask / mask.sum())
    assert not torch.equal(terms["kl"].weights(mask), terms["policy"].weights(mask))


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
def test_gspo_token_takes_an_advantage_for_each_step(vectors, dtype):
    batch = coupled_batch(vectors, dtype)
    rising = batch.advantages * (1 + 0.1 * torch.arange(5, dtype=dtype))
    loss = gspo_token(replace(batch, advantages=rising), **wide)
    check(vectors, "gspo_token/tokadv", (loss * MEAN(batch.mask)).sum(), batch.logp, dtype)


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
def test_gpg_is_reinforce_under_its_own_advantage(vectors, dtype):
    batch = coupled_batch(vectors, dtype)
    advantages = vectors["gpg/adv"].to(dtype)[:, None] * batch.mask
    loss = reinforce(replace(batch, advantages=advantages))
    check(vectors, "gpg", (loss * TOKENS(batch.mask)).sum(), batch.logp, dtype)


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize("bound", [0.2, 0.15])
def test_prime_rl_is_dppo_without_a_cap_and_with_a_pull(vectors, bound, dtype):
    batch = coupled_batch(vectors, dtype)
    loss = dppo_pulled(batch, too_far=partial(total_variation, low=bound, high=bound))
    value = (loss * TOKENS(batch.mask)).sum()
    check(vectors, f"dppo_prime/{bound}", value, batch.logp, dtype, "grad_rows")


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
def test_a_wider_bound_of_the_binary_kl_masks_one_step_less(vectors, dtype):
    batch = coupled_batch(vectors, dtype)
    bound = partial(binary_kl, low=0.1, high=0.1)
    assert (bound(batch) & batch.mask).nonzero().tolist() == [[2, 1]]
    assert (binary_kl(batch) & batch.mask).nonzero().tolist() == [[2, 1], [4, 0]]
    value = (dppo(batch, too_far=bound) * TOKENS(batch.mask)).sum()
    assert value.item() == pytest.approx(0.145935, abs=1e-6)


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
def test_rloo_is_a_loss_of_steps_under_its_own_advantage(vectors, dtype):
    batch = coupled_batch(vectors, dtype)
    own = replace(batch, advantages=vectors["rloo"].to(dtype)[:, None] * batch.mask)
    for loss, weigh, name in ((ppo, TOKENS, "ppo_token"), (reinforce, SUM, "reinforce_seqsum")):
        value = (loss(own) * weigh(batch.mask)).sum()
        check(vectors, f"rloo/{name}", value, batch.logp, dtype)


def test_demonstrations_are_imitated_step_by_step(vectors):
    batch = coupled_batch(vectors)
    shown = replace(batch, advantages=batch.mask.double())
    check(vectors, "sft", (nll(shown) * TOKENS(batch.mask)).sum(), batch.logp)


def test_a_ratio_is_that_of_each_step(vectors):
    batch = coupled_batch(vectors)
    assert_close(ratio_of(batch.logp, batch.old_logp) * batch.mask, vectors["ppo/ratio"])


WEIGHTED = [
    (importance.token_tis, "op/ppo*tis2", "grad"),
    (importance.icepop, "op/ppo*icepop.5_5", "grad"),
    (partial(importance.icepop, high=2.0), "op/ppo*icepop.5_2", "grad"),
    (importance.sequence_tis, "op/ppo*seqtis2", "grad"),
    (importance.sequence_mask, "op/ppo*seqmask(max3)", "grad"),
    (partial(importance.token_tis, ratio_max=math.inf), "decoupled/uncapped", "grad_rows"),
    (partial(importance.token_tis, ratio_max=5.0), "decoupled/cap5", "grad_rows"),
    (partial(importance.icepop, low=0.0, high=2.0), "decoupled/mask<=2", "grad_rows"),
]


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize(
    ("correct", "name", "kind"), WEIGHTED, ids=[name for _, name, _ in WEIGHTED]
)
def test_ppo_with_a_correction_is_the_reference_one(vectors, correct, name, kind, dtype):
    batch = coupled_batch(vectors, dtype)
    weight = correct(batch)
    value = (weight * ppo(batch) * TOKENS(batch.mask)).sum()
    check(vectors, name, value, batch.logp, dtype, kind)


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
def test_rejected_samples_leave_the_mean_only_if_the_mask_loses_them(vectors, dtype):
    batch = coupled_batch(vectors, dtype)
    kept = importance.sequence_rejection(batch)
    shortened = (kept * ppo(batch) * TOKENS(batch.mask)).sum()
    renormalised = (ppo(batch) * TOKENS(batch.mask & kept.bool())).sum()
    want = vectors["op/rs_zero_weight_full_denominator/loss"]
    close = {"atol": PRECISION[dtype], "rtol": 0.0, "check_dtype": False}
    assert_close(shortened.detach(), want, **close)
    (gradient,) = torch.autograd.grad(renormalised, batch.logp)
    assert_close(renormalised.detach(), vectors["op/rs_seqsum_k1_.5_2/loss"], **close)
    assert_close(gradient.sum(1), vectors["op/rs/grad_rows"], **close)


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
def test_bypass_puts_the_sampler_in_the_place_of_the_old_policy(vectors, dtype):
    batch = coupled_batch(vectors, dtype)
    bypass = replace(batch, old_logp=importance.rollout(batch))
    clipped = (ppo(bypass) * TOKENS(batch.mask)).sum()
    truncated = (cispo(bypass, ratio_max=2.0) * TOKENS(batch.mask)).sum()
    check(vectors, "op/bypass(ratio=new/roll)", clipped, batch.logp, dtype)
    check(vectors, "op/bypass_pg_token_tis2", truncated, batch.logp, dtype, "grad_rows")


GAP = torch.tensor([0.0, 1, 2, 0, 3, 5])


def stale(vectors, dtype):
    batch = coupled_batch(vectors, dtype)
    return replace(batch, version_gap=GAP[:, None] * batch.mask)


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
def test_a_decayed_weight_on_top_of_ppo_is_what_flux_documents(vectors, dtype):
    batch = stale(vectors, dtype)
    unratioed = replace(batch, old_logp=importance.current(batch))
    weight = importance.staleness_decay(unratioed, decay=0.99)
    value = (weight * ppo(batch) * TOKENS(batch.mask)).sum()
    check(vectors, "flux/doc_w*ppo", value, batch.logp, dtype)


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
def test_areal_needs_no_forward_pass_for_its_old_policy(vectors, dtype):
    batch = stale(vectors, dtype)
    proximal = torch.where(batch.mask, importance.interpolate(batch), 0)
    decoupled = replace(batch, old_logp=proximal)
    weight = importance.token_tis(decoupled, ratio_max=math.inf)
    value = (weight * ppo(decoupled) * TOKENS(batch.mask)).sum()
    (gradient,) = torch.autograd.grad(value, batch.logp)
    close = {"atol": PRECISION[dtype], "rtol": 0.0, "check_dtype": False}
    assert_close(proximal, vectors["areal/prox_loglinear"], **close)
    assert_close(value.detach(), vectors["areal/loglinear_loss"], **close)
    assert_close(gradient.sum(1), vectors["areal/loglinear_grad_rows"], **close)
