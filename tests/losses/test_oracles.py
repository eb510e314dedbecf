"""Oracles of the losses: loops over one sample in plain numbers."""

from dataclasses import replace
from functools import partial
from math import exp, log, prod

import pytest
import torch
from every_loss import random_batch
from records import rollout, scores
from torch.testing import assert_close

from tandem.algorithm.coupled import Coupled
from tandem.algorithm.objective import Term
from tandem.algorithm.segments import Segmented
from tandem.experience import Budget, Experience, even_parts
from tandem.losses import importance
from tandem.losses.bounds import spg
from tandem.losses.future_kl import fipo
from tandem.losses.off_policy import m2po
from tandem.losses.policy import ppo, reinforce
from tandem.losses.reduction import sequence_mean, token_mean
from tandem.losses.segments import Segment
from tandem.losses.sequence import gmpo, gspo, vespo
from tandem.losses.soft_clip import cispo, dro, drpo, sapo
from tandem.losses.trust_region import OffPolicyMask, binary_kl, dppo, total_variation
from tandem.policies.masked.records import States
from tandem.types import CoupledBatch, Evidence

# Each takes log p, log p_old and log q of a sample's steps, its advantage, and the log p
# used in factors without gradient.


def gspo_of(new, old, sampler, a, at):
    ratio = (prod(map(exp, new)) / prod(map(exp, old))) ** (1 / len(new))
    inside = max(min(ratio, 1.2), 0.9)
    return [max(-a * ratio, -a * inside)] * len(new)


def gmpo_of(new, old, sampler, a, at):
    ratios = [exp(n) / exp(o) for n, o in zip(new, old, strict=True)]
    held = [min(r, exp(0.4)) if a > 0 else max(r, exp(-0.3)) for r in ratios]
    return [-a * prod(held) ** (1 / len(new))] * len(new)


def vespo_of(new, old, sampler, a, at):
    w = prod(map(exp, at)) / prod(map(exp, old))
    phi = w**2 * exp(3 * (1 - w)) if a >= 0 else w**3 * exp(2 * (1 - w))
    return [-phi * a * n for n in new]


def cispo_of(new, old, sampler, a, at):
    return [-min(exp(s) / exp(o), 1.5) * a * n for n, o, s in zip(new, old, at, strict=True)]


def sapo_of(new, old, sampler, a, at):
    tau = 1.0 if a > 0 else 1.05
    return [
        -a * 4 / tau / (1 + exp(-tau * (exp(n) / exp(o) - 1)))
        for n, o in zip(new, old, strict=True)
    ]


def dro_of(new, old, sampler, a, at):
    return [-(n * a - 0.05 * (n - o) ** 2) for n, o in zip(new, old, strict=True)]


def dppo_of(new, old, sampler, a, at):
    def of_step(n, s, now):
        p, q = exp(now), exp(s)
        if (a > 0 and p - q > 0.1) or (a < 0 and q - p > 0.05):
            return 0.0
        return -a * min(p / q, 1.5) * n

    return [of_step(*step) for step in zip(new, sampler, at, strict=True)]


def dppo_kl_of(new, old, sampler, a, at):
    def of_step(n, s, now):
        p, q = exp(now), exp(s)
        divergence = q * log(q / p) + (1 - q) * log((1 - q) / (1 - p))
        gains = (a > 0 and p > q) or (a < 0 and p < q)
        return 0.0 if gains and divergence > 0.02 else -a * min(p / q, 20) * n

    return [of_step(*step) for step in zip(new, sampler, at, strict=True)]


def opsm_of(new, old, sampler, a, at):
    gap = sum(s - n for n, s in zip(at, sampler, strict=True)) / len(new)
    return [0.0 if a < 0 and gap > 0.1 else -a * n for n in new]


def drpo_of(new, old, sampler, a, at):
    def of_step(n, s):
        r, mu = exp(n) / exp(s), exp(s)
        return -a * r + abs(a) * mu * (r - 1) ** 2 / (2 * 0.15)

    return [of_step(n, s) for n, s in zip(new, sampler, strict=True)]


def fipo_of(new, old, sampler, a, at):
    ratios = [exp(n) / exp(o) for n, o in zip(new, old, strict=True)]
    now = [n - o for n, o in zip(at, old, strict=True)]
    if a < 0 and sum(d > log(2) for d in now) >= 2:
        return [0.0] * len(new)

    def weight(t):
        future = sum(0.5 ** ((k - t) / 3) * d for k, d in enumerate(now) if k >= t and d <= log(2))
        low, high = (0.8, 1.0) if a < 0 and now[t] > log(4) else (0.9, 1.2)
        return min(max(exp(future), low), high)

    def of_step(r, b):
        clipped = max(-b * r, -b * min(max(r, 0.8), 1.28))
        return min(clipped, -b * 2) if b < 0 else clipped

    return [of_step(r, a * weight(t)) for t, r in enumerate(ratios)]


ORACLES = {
    gspo_of: partial(gspo, clip_low=0.1, clip_high=0.2),
    gmpo_of: partial(gmpo, clip_low=0.3),
    vespo_of: vespo,
    cispo_of: partial(cispo, ratio_max=1.5),
    sapo_of: sapo,
    dro_of: dro,
    dppo_of: partial(dppo, too_far=partial(total_variation, low=0.05, high=0.1), ratio_max=1.5),
    dppo_kl_of: partial(dppo, too_far=partial(binary_kl, low=0.02, high=0.02)),
    opsm_of: OffPolicyMask(loss=reinforce, delta=0.1),
    drpo_of: partial(drpo, delta=0.15),
    fipo_of: partial(fipo, half_life=3.0, weight_low=0.1, ratio_max=2.0, safety=4.0),
}


def slope_at(function, point, h=1e-4):
    """The gradient of a sum of numbers at a list of numbers, by differences of fourth order."""

    def moved(place, by):
        return sum(function([x + by * (i == place) for i, x in enumerate(point)]))

    return [
        (8 * (moved(i, h) - moved(i, -h)) - moved(i, 2 * h) + moved(i, -2 * h)) / (12 * h)
        for i in range(len(point))
    ]


def with_holes(batch):
    """Untrained steps between trained ones, and a sample without any."""
    generator = torch.Generator().manual_seed(5)
    mask = batch.mask & (torch.rand(batch.mask.shape, generator=generator) < 0.8)
    mask[3] = False
    names = ("logp", "old_logp", "behaviour_logp", "advantages")
    inside = {name: getattr(batch, name).detach() * mask for name in names}
    inside["logp"].requires_grad_()
    return replace(batch, mask=mask, **inside)


@pytest.mark.parametrize(("oracle", "loss"), ORACLES.items(), ids=[f.__name__ for f in ORACLES])
def test_a_loss_and_its_gradient_are_what_a_loop_over_one_sample_says(oracle, loss):
    batch = with_holes(random_batch(rows=80, spread=1.0))
    got = loss(batch)
    (slope,) = torch.autograd.grad(torch.where(batch.mask, got, 0).sum(), batch.logp)
    close = partial(assert_close, atol=1e-9, rtol=0)
    for row, mask in enumerate(batch.mask):
        if not mask.any():
            continue
        logps = (batch.logp, batch.old_logp, batch.behaviour_logp)
        new, *others = (x[row][mask].tolist() for x in logps)
        a = batch.advantages[row][mask][0].item()
        want = oracle(new, *others, a, new)
        close(got[row][mask], torch.tensor(want, dtype=torch.float64))
        want = slope_at(lambda x: oracle(x, *others, a, new), new)  # noqa: B023
        close(slope[row][mask], torch.tensor(want, dtype=torch.float64))


def m2po_of(updated, old, advantages, kept):
    """The mean over all steps of an update; `kept`: those with a small enough second moment."""
    steps = zip(updated, old, advantages, range(len(old)), strict=True)
    return [-a * exp(n) / exp(o) / len(old) if t in kept else 0.0 for n, o, a, t in steps]


def kept_mask(now, old, advantages, spread):
    moved = [n - o for n, o in zip(now, old, strict=True)]
    harmful = [t for t, d in enumerate(moved) if advantages[t] * d > 0]
    while harmful and sum(moved[t] ** 2 for t in harmful) / len(harmful) > spread**2:
        harmful.remove(max(harmful, key=lambda t: abs(moved[t])))
    others = [t for t, d in enumerate(moved) if advantages[t] * d <= 0]
    return {*harmful, *others}


class Told:
    """A policy whose log-probabilities of each row, found by its key, are given."""

    def __init__(self, logp):
        self.evidence = lambda rows, needs: Evidence(logp=logp[rows.key][:, : rows.mask.shape[1]])
        self.row_cost = lambda rows: rows.length


@pytest.mark.parametrize("budget", [Budget(), Budget(rows=3), Budget(max_tokens=5)], ids=str)
def test_a_second_moment_is_that_of_the_whole_update_however_it_is_cut(budget):
    batch = with_holes(random_batch(rows=12))
    judged = torch.arange(12) != 5  # the sample has no score, hence no advantage
    advantages = batch.advantages * judged[:, None]
    rows = rollout(batch.mask, batch.group, key=torch.arange(12), old_logp=batch.old_logp)
    last = (batch.mask * torch.arange(1, 7)).amax(1)
    rows = replace(rows, length=last)
    given = Experience(
        rollout=rows, scores=scores(advantages[:, 0].float(), judged), advantages=advantages
    )
    term = Term(loss=partial(m2po, spread=0.3), coef=1.0, weights=token_mean)
    own, policy = Coupled({"policy": term}, old_policy=importance.recompute), Told(batch.logp)
    update = own.add_statistics(policy, replace(given, weights=own.weigh(given)), budget)
    cost, facts = policy.row_cost(update.rollout), {"zero_at_zero_advantage": True}
    parts = even_parts(update, cost, budget, **facts, whole_groups=own.whole_groups)
    loss = sum(own(policy, part).loss for part in parts)
    (slope,) = torch.autograd.grad(loss, batch.logp)
    now, old, a = (x[batch.mask].tolist() for x in (batch.logp, batch.old_logp, advantages))
    kept = kept_mask(now, old, a, 0.3)
    assert 0 < len(kept) < len(now)
    value = partial(m2po_of, old=old, advantages=a, kept=kept)
    assert loss.item() == pytest.approx(sum(value(now)), abs=1e-9)
    want = torch.tensor(slope_at(value, now), dtype=torch.float64)
    assert_close(slope[batch.mask], want, atol=1e-9, rtol=0)


def spg_of(said, masks, length, a, omega=0.3, beta=1.5):
    """`said`: log p of every position, state by state; `masks`: the positions that each hides."""
    width = len(said) // len(masks)
    own = [dict(zip(range(width), said[s * width :], strict=False)) for s in range(len(masks))]
    lower = sum(sum(own[s][i] for i in m) / len(m) for s, m in enumerate(masks)) / len(masks)
    if a > 0:
        return [-a * lower]
    seen = {i for mask in masks for i in mask}
    upper = 0.0
    for i in seen:
        powers = [exp(own[s][i]) ** beta / (len(m) / length) for s, m in enumerate(masks) if i in m]
        upper += log(sum(powers) / len(masks)) / beta / len(seen)
    return [-a * (omega * upper + (1 - omega) * lower)]


def test_a_sandwiched_gradient_is_that_of_a_loop_over_states():
    """Answers of 1 to 5 positions, three states each, good and bad."""
    generator = torch.Generator().manual_seed(0)
    length, count, width = torch.arange(20) % 5 + 1, 3, 5
    free = torch.arange(width) < length[:, None]
    masks = torch.zeros(60, width, dtype=torch.bool)
    for state in range(60):  # a count from 1 to all positions
        most = int(length[state // count])
        number = int(torch.randint(1, most + 1, (), generator=generator))
        masks[state, torch.randperm(most, generator=generator)[:number]] = True
    row = torch.arange(20).repeat_interleave(count)
    share = length[row, None].double() / masks.sum(1, keepdim=True)
    states = States(row=row, hidden=masks, weight=masks * share / count, count=count)
    said = -2 * torch.rand(60, width, generator=generator, dtype=torch.float64)
    said.requires_grad_()
    advantages = torch.randn(20, 1, generator=generator, dtype=torch.float64) * free
    batch = CoupledBatch(
        logp=states.values(said, 20), upper_logp=states.upper_values(said, free, beta=1.5),
        advantages=advantages, mask=free, group=torch.zeros(20, dtype=torch.int64),
    )  # fmt: skip
    got, close = spg(batch, omega=0.3), partial(assert_close, atol=1e-9, rtol=0)
    (slope,) = torch.autograd.grad(got[:, 0].sum(), said)
    for own in range(20):
        hides = [m.nonzero()[:, 0].tolist() for m in masks[row == own]]
        a = advantages[own, 0].item()
        value = partial(spg_of, masks=hides, length=int(length[own]), a=a)
        point = said[row == own].flatten().tolist()
        want = torch.tensor(value(point), dtype=torch.float64).expand(int(length[own]))
        close(got[own][free[own]], want)  # shares of positions are float32
        want = torch.tensor(slope_at(value, point), dtype=torch.float64)
        close(slope[row == own].flatten(), want)


CLIPS = {0: 0.2, 1: 0.2e-3}  # of tokens, and of denoising steps
LAMBDA = 0.7


def chain_of(new, old, advantages, kinds, rows):
    """The mean over samples of their token means, plus LAMBDA times that of their step means."""
    total = 0.0
    for kind, share in ((0, 1.0), (1, LAMBDA)):
        means = []
        for row in sorted({*rows}):
            own = [t for t in range(len(new)) if rows[t] == row and kinds[t] == kind]
            steps = []
            for t in own:
                ratio, a = exp(new[t]) / exp(old[t]), advantages[t]
                inside = min(max(ratio, 1 - CLIPS[kind]), 1 + CLIPS[kind])
                steps.append(max(-a * ratio, -a * inside))
            if steps:
                means.append(sum(steps) / len(steps))
        total += share * sum(means) / len(means)
    return [total]


@pytest.mark.parametrize("budget", [Budget(), Budget(rows=2)], ids=str)
def test_a_chain_is_a_mean_of_texts_and_one_of_pictures_however_it_is_cut(budget):
    """One sample has no trained token, one no trained step, and one neither."""
    batch = with_holes(random_batch(rows=8, steps=7))
    segment = (torch.arange(7) < 2).to(torch.int8).expand(8, 7)
    mask = batch.mask.clone()
    mask[1, 2:], mask[2, :2] = False, False
    mask[1, :2] = mask[2, 2:4] = True
    scale = torch.where(segment == 1, 1e-3, 1.0)
    old = (-1 - torch.rand(8, 7, generator=torch.Generator().manual_seed(2)).double()) * mask
    moved = torch.randn(8, 7, generator=torch.Generator().manual_seed(3)).double() * 0.3 * scale
    logp = ((old + moved) * mask).requires_grad_()
    advantages = torch.linspace(-1.3, 1.7, 8, dtype=torch.float64)[:, None] * mask
    length = ((mask & (segment == 0)) * torch.arange(-1, 6)).amax(1)  # of the text
    rows = rollout(mask, torch.zeros(8, dtype=torch.int64), key=torch.arange(8), length=length,
                   segment=segment, old_logp=old)  # fmt: skip
    given = Experience(rollout=rows, scores=scores(advantages[:, 0]), advantages=advantages)
    term = Term(loss=ppo, coef=1.0, weights=sequence_mean)
    own = Segmented(
        {"policy": term}, old_policy=importance.recompute,
        segments={"text": Segment(), "picture": Segment(weight=LAMBDA, clip_scale=1e-3)},
    )  # fmt: skip
    update = replace(given, weights=own.weigh(given))
    parts = even_parts(update, length + 2, budget, zero_at_zero_advantage=True, whole_groups=False)
    loss = sum(own(Told(logp), part).loss for part in parts)
    (slope,) = torch.autograd.grad(loss, logp)
    now, before, a, kinds = (x[mask].tolist() for x in (logp, old, advantages, segment))
    value = partial(
        chain_of, old=before, advantages=a, kinds=kinds, rows=mask.nonzero()[:, 0].tolist()
    )
    close = partial(assert_close, atol=1e-7, rtol=0)  # weights of steps are float32
    close(loss, torch.tensor(value(now)[0], dtype=torch.float64))
    close(slope[mask], torch.tensor(slope_at(value, now, h=1e-6), dtype=torch.float64))
