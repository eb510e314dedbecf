"""Losses of pairs of a chosen and a rejected answer: (CoupledBatch, *, numbers) -> [B, T].

Each formula is for one pair, with log-probabilities of `chosen` and `rejected` relative to the
reference or absolute. beta is per nat of a sample, or of its mean step with length normalisation.
"""

from __future__ import annotations

import math
from typing import Annotated

from torch import Tensor
from torch.nn.functional import logsigmoid

from tandem.contracts import at_least, between, positive, register_policy_loss
from tandem.losses.pairs import log_ratio, of_pairs, of_row, on_pairs, pairs_by
from tandem.types import CoupledBatch

NEARLY_SURE = -1e-7  # nats: keeps odds finite if a probability rounds to 1

Temperature = Annotated[float, positive]
LabelNoise = Annotated[float, between(0, 0.5, open_high=True)]  # share of flipped labels


def by_reference(batch: CoupledBatch, *, beta: float, length_norm: bool = False) -> Tensor:
    """beta (log p - log p_ref) of each row: [B, 1]"""
    return beta * log_ratio(batch, length_norm=length_norm)


def by_itself(batch: CoupledBatch, *, beta: float, length_norm: bool) -> Tensor:
    """beta log p of each row, or of its mean step: [B, 1]"""
    return beta * of_row(batch.logp, batch, length_norm=length_norm)


def by_mean_step(batch: CoupledBatch, *, odds: float) -> Tensor:
    """The mean log p of each row's steps, times the coefficient of the odds: [B, 1]"""
    return odds * of_row(batch.logp, batch, length_norm=True)


def logistic(margin: Tensor, label_smoothing: float) -> Tensor:
    """-log sigmoid(margin), as if a share `label_smoothing` of the labels were flipped.

    Shape: [B, 1] -> [B, 1].
    """
    right, turned = logsigmoid(margin), logsigmoid(-margin)
    return -(1 - label_smoothing) * right - label_smoothing * turned


PAIRS = {"per": "row", "zero_at_zero_advantage": True, "whole_groups": True}
AGAINST_REFERENCE = {
    "reads": {"ref_logp"},
    "reward": by_reference,
    "metrics": pairs_by(by_reference),
    "units": {"beta": "preference"},
    **PAIRS,
}
SMOOTHED = {**AGAINST_REFERENCE, "units": {"beta": "preference", "label_smoothing": "none"}}


# -log sigmoid of the margin between chosen and rejected (DPO; cDPO by label_smoothing)
@register_policy_loss(**SMOOTHED)
def dpo(
    batch: CoupledBatch,
    *,
    beta: Temperature = 0.1,  # temperature: factor of the difference of log ratios, per nat
    label_smoothing: LabelNoise = 0.0,  # the share of labels assumed wrong
    length_norm: bool = False,  # true: means over steps; false: sums
) -> Tensor:
    """-log sigmoid(beta D), D the difference of log ratios (arXiv:2305.18290).

    `label_smoothing` is conservative DPO; `length_norm` takes mean steps in place of sums.
    Shape: [B, T].
    """
    chosen, rejected = of_pairs(log_ratio(batch, length_norm=length_norm), batch)
    return on_pairs(logistic(beta * (chosen - rejected), label_smoothing), batch)


# DPO's loss, unbiased if a share of the labels is wrong
@register_policy_loss("dpo_robust", **SMOOTHED)
def robust(
    batch: CoupledBatch,
    *,
    beta: Temperature = 0.1,  # temperature: factor of the difference of log ratios, per nat
    label_smoothing: LabelNoise = 0.1,  # the share of labels assumed wrong
) -> Tensor:
    """DPO's loss, unbiased if a share `label_smoothing` of the labels is wrong (arXiv:2403.00409).

    [-(1 - e) log sigmoid(beta D) + e log sigmoid(-beta D)] / (1 - 2e), e below 1/2.
    """
    chosen, rejected = of_pairs(log_ratio(batch), batch)
    margin, e = beta * (chosen - rejected), label_smoothing
    value = (-(1 - e) * logsigmoid(margin) + e * logsigmoid(-margin)) / (1 - 2 * e)
    return on_pairs(value, batch)


# max(0, 1 - margin) of chosen and rejected (SLiC)
@register_policy_loss("dpo_hinge", **AGAINST_REFERENCE)
def hinge(
    batch: CoupledBatch,
    *,
    beta: Temperature = 0.1,  # temperature: factor of the difference of log ratios, per nat
) -> Tensor:
    """max(0, 1 - beta D) (SLiC, arXiv:2305.10425): [B, T]."""
    chosen, rejected = of_pairs(log_ratio(batch), batch)
    return on_pairs((1 - beta * (chosen - rejected)).clamp(min=0), batch)


# Squared distance of the margin to 1 / (2 beta) (IPO)
@register_policy_loss(**AGAINST_REFERENCE)
def ipo(
    batch: CoupledBatch,
    *,
    beta: Temperature = 0.1,  # the margin to reach is 1 / (2 beta), in nats
    length_norm: bool = True,  # true: means over steps; false: sums, as published
) -> Tensor:
    """(D - 1 / (2 beta))^2: a margin to reach, not to pass (arXiv:2310.12036).

    D uses mean steps, as its authors advise now, or sums, as published, without `length_norm`.
    Shape: [B, T].
    """
    chosen, rejected = of_pairs(log_ratio(batch, length_norm=length_norm), batch)
    return on_pairs((chosen - rejected - 1 / (2 * beta)).square(), batch)


# A margin of mean steps, gamma wide, without a reference (SimPO)
@register_policy_loss(
    reward=by_itself,
    metrics=pairs_by(by_itself),
    units={"beta": "preference", "gamma": "none", "label_smoothing": "none"},
    refused={
        "steps": "the log-probability of a random step measures only its noise unless a reference "
        "is subtracted; set algorithm/loss=dpo",
        "pictures": "a regression error equals a log-likelihood only up to a constant per picture, "
        "which only a reference cancels; set algorithm/loss=dpo",
    },
    **PAIRS,
)
def simpo(
    batch: CoupledBatch,
    *,
    beta: Temperature = 2.0,  # temperature: factor of the difference of log p, per nat of a step
    # Margin between chosen and rejected; published: 0.5 to 1.4.
    gamma: Annotated[float, at_least(0)] = 0.5,
    length_norm: bool = True,  # true: mean log p of a row's steps; false: their sum
    label_smoothing: LabelNoise = 0.0,  # share of labels taken to be flipped
) -> Tensor:
    """-log sigmoid(beta (log p_w / n_w - log p_l / n_l) - gamma), no reference (arXiv:2405.14734).

    With gamma 0 and sums it is DPO with a uniform reference. Shape: [B, T].
    """
    chosen, rejected = of_pairs(of_row(batch.logp, batch, length_norm=length_norm), batch)
    return on_pairs(logistic(beta * (chosen - rejected) - gamma, label_smoothing), batch)


# -log p of the chosen answer, and the odds against the rejected one (ORPO)
@register_policy_loss(
    reward=by_mean_step,
    metrics=pairs_by(by_mean_step),
    units={"odds": "none"},
    refused={
        "steps": "odds need a probability, but a Gaussian step has a density; set "
        "algorithm/loss=dpo",
        "pictures": "odds need a probability, but a regression error is not one; set "
        "algorithm/loss=dpo",
    },
    **PAIRS,
)
def orpo(
    batch: CoupledBatch,
    *,
    odds: Annotated[float, positive] = 0.1,  # weight of the odds against the rejected answer
) -> Tensor:
    """-a_w - odds log sigmoid(log odds(a_w) - log odds(a_l)), a the mean log p of a row's steps.

    The first part imitates the chosen answer; length does not matter (arXiv:2403.07691,
    where odds is lambda). Shape: [B, T].
    """
    chosen, rejected = of_pairs(of_row(batch.logp, batch, length_norm=True), batch)
    return on_pairs(-chosen - odds * logsigmoid(log_odds(chosen) - log_odds(rejected)), batch)


def log_odds(logp: Tensor) -> Tensor:
    """log p - log(1 - p) [B, 1] -> [B, 1]."""
    logp = logp.clamp(max=NEARLY_SURE)
    return logp - (-logp.expm1()).log()


# Chosen and rejected separately: the chosen one cannot fall with the rejected (NCA)
@register_policy_loss(**AGAINST_REFERENCE)
def nca(
    batch: CoupledBatch,
    *,
    beta: Temperature = 0.1,  # temperature: factor of the log ratio, per nat of a row
) -> Tensor:
    """-ls(r_w) - ls(-r_w) / 2 - ls(-r_l) / 2, r = beta (log p - log p_ref), ls = log sigmoid.

    Absolute rewards, not differences: the chosen row may not fall with the rejected one
    (arXiv:2402.05369). Shape: [B, T].
    """
    chosen, rejected = of_pairs(by_reference(batch, beta=beta), batch)
    value = -logsigmoid(chosen) - 0.5 * logsigmoid(-chosen) - 0.5 * logsigmoid(-rejected)
    return on_pairs(value, batch)


# Reverse KL to the preference; DPO uses the forward KL (EXO)
@register_policy_loss(**SMOOTHED)
def exo(
    batch: CoupledBatch,
    *,
    beta: Temperature = 0.1,  # temperature: factor of the log ratio, per nat of a row
    label_smoothing: Annotated[float, between(0, 0.5, open_low=True, open_high=True)] = 1e-3,
) -> Tensor:
    """KL(policy's preference || the label's, smoothed), the reverse of DPO's (arXiv:2402.00856).

    label_smoothing: the probability that a label is wrong. Shape: [B, T].
    """
    chosen, rejected = of_pairs(by_reference(batch, beta=beta), batch)
    right, turned = logsigmoid(chosen - rejected), logsigmoid(rejected - chosen)
    value = right.exp() * (right - math.log1p(-label_smoothing))
    return on_pairs(value + turned.exp() * (turned - math.log(label_smoothing)), batch)


# Chosen up and rejected down to 1 / (2 beta) each (SPPO)
@register_policy_loss(**AGAINST_REFERENCE)
def sppo_hard(
    batch: CoupledBatch,
    *,
    beta: Temperature = 0.1,  # each log ratio is pulled to 1 / (2 beta) or its negative, in nats
) -> Tensor:
    """(log ratio of chosen - 1 / (2 beta))^2 + (that of rejected + 1 / (2 beta))^2.

    Self-play with a judge that is certain (arXiv:2405.00675). Shape: [B, T].
    """
    chosen, rejected = of_pairs(log_ratio(batch), batch)
    goal = 1 / (2 * beta)
    return on_pairs((chosen - goal).square() + (rejected + goal).square(), batch)


# Chosen up and rejected down, each with its own sigmoid (APO-zero)
@register_policy_loss(**AGAINST_REFERENCE)
def apo_zero(batch: CoupledBatch, *, beta: Temperature = 0.1) -> Tensor:
    """1 - sigmoid(r_w) + sigmoid(r_l): chosen up and rejected down, independently.

    r is `beta` times the log ratio of a row. beta: temperature, per nat of a row. For chosen
    answers that are better than the policy's own (arXiv:2408.06266). Shape: [B, T].
    """
    chosen, rejected = of_pairs(by_reference(batch, beta=beta), batch)
    return on_pairs((-chosen).sigmoid() + rejected.sigmoid(), batch)
