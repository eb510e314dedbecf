"""The losses once more, written as loops over one sample in plain numbers."""

from functools import partial
from math import exp, log, prod

import pytest
import torch
from every_loss import random_batch
from torch.testing import assert_close

from tandem.losses.policy import reinforce
from tandem.losses.sequence import gmpo, gspo, vespo
from tandem.losses.soft_clip import cispo, dro, sapo
from tandem.losses.trust_region import OffPolicyMask, binary_kl, dppo, total_variation

# Each takes log p, log p_old and log q of the steps of a sample, and its advantage.


def gspo_of(new, old, sampler, a):
    ratio = (prod(map(exp, new)) / prod(map(exp, old))) ** (1 / len(new))
    inside = max(min(ratio, 1.2), 0.9)
    return [max(-a * ratio, -a * inside)] * len(new)


def gmpo_of(new, old, sampler, a):
    ratios = [exp(n) / exp(o) for n, o in zip(new, old, strict=True)]
    held = [min(r, exp(0.4)) if a > 0 else max(r, exp(-0.3)) for r in ratios]
    return [-a * prod(held) ** (1 / len(new))] * len(new)


def vespo_of(new, old, sampler, a):
    w = prod(map(exp, new)) / prod(map(exp, old))
    phi = w**2 * exp(3 * (1 - w)) if a >= 0 else w**3 * exp(2 * (1 - w))
    return [-phi * a * n for n in new]


def cispo_of(new, old, sampler, a):
    return [-min(exp(n) / exp(o), 1.5) * a * n for n, o in zip(new, old, strict=True)]


def sapo_of(new, old, sampler, a):
    tau = 1.0 if a > 0 else 1.05
    return [
        -a * 4 / tau / (1 + exp(-tau * (exp(n) / exp(o) - 1)))
        for n, o in zip(new, old, strict=True)
    ]


def dro_of(new, old, sampler, a):
    return [-(n * a - 0.05 * (n - o) ** 2) for n, o in zip(new, old, strict=True)]


def dppo_of(new, old, sampler, a):
    def of_step(n, s):
        p, q = exp(n), exp(s)
        if (a > 0 and p - q > 0.1) or (a < 0 and q - p > 0.05):
            return 0.0
        return -a * min(p / q, 1.5) * n

    return [of_step(n, s) for n, s in zip(new, sampler, strict=True)]


def dppo_kl_of(new, old, sampler, a):
    def of_step(n, s):
        p, q = exp(n), exp(s)
        divergence = q * log(q / p) + (1 - q) * log((1 - q) / (1 - p))
        gains = (a > 0 and p > q) or (a < 0 and p < q)
        return 0.0 if gains and divergence > 0.02 else -a * min(p / q, 20) * n

    return [of_step(n, s) for n, s in zip(new, sampler, strict=True)]


def opsm_of(new, old, sampler, a):
    gap = sum(s - n for n, s in zip(new, sampler, strict=True)) / len(new)
    return [0.0 if a < 0 and gap > 0.1 else -a * n for n in new]


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
}


@pytest.mark.parametrize(("oracle", "loss"), ORACLES.items(), ids=[f.__name__ for f in ORACLES])
def test_a_loss_is_what_a_loop_over_one_sample_says(oracle, loss):
    batch = random_batch(rows=60)
    got = loss(batch)
    for row, mask in enumerate(batch.mask):
        logps = (batch.logp, batch.old_logp, batch.behaviour_logp)
        steps = (x[row][mask].tolist() for x in logps)
        want = oracle(*steps, batch.advantages[row, 0].item())
        assert_close(got[row][mask], torch.tensor(want, dtype=torch.float64), atol=1e-7, rtol=0)
