"""The policy losses by name, and random batches for their laws."""

from functools import partial

import torch

from tandem.losses.future_kl import fipo
from tandem.losses.off_policy import topr
from tandem.losses.policy import ppo, reinforce
from tandem.losses.sequence import gmpo, gspo, gspo_token, vespo
from tandem.losses.soft_clip import cfpo, cispo, dro, drpo, sapo
from tandem.losses.trust_region import OffPolicyMask, binary_kl, dppo, dppo_pulled
from tandem.types import CoupledBatch

LOSSES = {
    "reinforce": reinforce,
    "ppo": ppo,
    "dapo": partial(ppo, clip_high=0.28),
    "dual_clip": partial(ppo, ratio_max=3.0),
    "cispo": cispo,
    "sapo": sapo,
    "dro": dro,
    "gspo": partial(gspo, clip_low=0.03, clip_high=0.04),
    "gspo_token": partial(gspo_token, clip_low=0.03, clip_high=0.04),
    "gmpo": gmpo,
    "vespo": vespo,
    "dppo": dppo,
    "dppo_kl": partial(dppo, too_far=binary_kl),
    "dppo_pulled": dppo_pulled,
    "cfpo": cfpo,
    "drpo": partial(drpo, delta=0.15),
    "topr": topr,
    "fipo": fipo,
    "opsm": OffPolicyMask(loss=ppo, delta=0.1),
}
PULLED = {"dro", "dppo_pulled"}  # these change rows without an advantage


def random_batch(
    rows: int = 40, steps: int = 6, seed: int = 0, spread: float = 0.5
) -> CoupledBatch:
    """Samples of 1 to `steps` steps, one advantage each; logp has a gradient. float64"""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(4, rows, steps, generator=generator, dtype=torch.float64)
    length = torch.randint(1, steps + 1, (rows, 1), generator=generator)
    mask = torch.arange(steps) < length
    old = (-1.5 - noise[0].abs()) * mask
    return CoupledBatch(
        logp=((old + spread * noise[1]).clamp(max=-1e-3) * mask).requires_grad_(),
        old_logp=old,
        behaviour_logp=(old + 0.1 * noise[2]).clamp(max=-1e-3) * mask,
        advantages=noise[3, :, :1] * mask,
        mask=mask,
        group=torch.arange(rows) // 4,
    )
