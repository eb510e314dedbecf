"""Step kernels with the reference's numbers, random steps, and a toy with an exact velocity."""

from functools import partial

import torch
from torch import Tensor

from tandem.dynamics.kernels import Step, cps, dance_sde, flow_sde, ode
from tandem.dynamics.likelihood import gaussian_kl, gaussian_logp, unscaled_logp
from tandem.types import CoupledBatch, Transition, align_level

NOISY = {
    "Flow-SDE": partial(flow_sde, noise_level=0.7),
    "Dance-SDE": partial(dance_sde, noise_level=0.3),
    "CPS": partial(cps, noise_level=0.8),
}
KERNELS = {"ODE": ode, **NOISY}
SDES = {name: NOISY[name] for name in ("Flow-SDE", "Dance-SDE")}
FALLING = partial(dance_sde, noise_level=0.9, power=1.0)
PUBLISHED_LOGP = {
    "Flow-SDE": gaussian_logp,
    "Dance-SDE": gaussian_logp,
    "CPS": unscaled_logp,
}
PRECISION = {torch.float64: 1e-6, torch.float32: 1e-5}


def levels(value: float | Tensor, like: Tensor) -> Tensor:
    """The same noise level for every row: [B]."""
    return torch.full(like.shape[:1], float(value), dtype=like.dtype)


def random_steps(
    rows: int = 12, size: tuple[int, ...] = (3, 4), seed: int = 0, dtype=torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, velocity [B, *size], and a sigma above its next_sigma in (0, 1) for every row: [B]."""
    generator = torch.Generator().manual_seed(seed)
    x, velocity = torch.randn(2, rows, *size, generator=generator, dtype=dtype)
    pair = 0.05 + 0.9 * torch.rand(rows, 2, generator=generator, dtype=dtype)
    high, low = pair.max(1).values, pair.min(1).values
    return x, velocity, high + 0.01, low


def noise_from_velocity(x: Tensor, velocity: Tensor, sigma: Tensor) -> Tensor:
    """x + (1 - sigma) velocity: [B, ...], sigma [B]."""
    return x + (1 - align_level(sigma, x)) * velocity


def reference_step(kernel, flow, velocity: Tensor, dtype: torch.dtype = torch.float64) -> Step:
    """The step from 0.6 to 0.4 on which the reference computes its losses: [4, 2]."""
    x = flow("grpo/x", dtype)
    return kernel(x, velocity, levels(0.6, x), levels(0.4, x))


def exact_velocity(x: Tensor, sigma: Tensor, variance: float) -> Tensor:
    """E[noise - x0 | x] if x0 ~ N(0, variance); sigma is a number."""
    return x * (sigma - (1 - sigma) * variance) / spread(sigma, variance)


def spread(sigma: Tensor, variance: float) -> Tensor:
    """The true variance of x_sigma."""
    return (1 - sigma) ** 2 * variance + sigma**2


def close(dtype):
    return {"atol": PRECISION[dtype], "rtol": 0, "check_dtype": False}


def reference_pair(flow, name, dtype=torch.float64):
    """The live velocity, its step, and the step of the old velocity."""
    velocity = flow("fixture/v", dtype).requires_grad_()
    step = reference_step(KERNELS[name], flow, velocity, dtype)
    old = reference_step(KERNELS[name], flow, flow("fixture/v_old", dtype), dtype)
    return velocity, step, old


def batch(flow, logp, old_logp, dtype, transition=None):
    return CoupledBatch(
        logp=logp[:, None],
        old_logp=old_logp[:, None],
        advantages=flow("fixture/A", dtype)[:, None],
        mask=torch.ones(4, 1, dtype=torch.bool),
        group=flow("fixture/group").long(),
        transition=transition,
    )


def describe(step: Step, old: Step, sigma: Tensor, next_sigma: Tensor) -> Transition:
    """The transition of single steps, [B, 1]; only the KL carries a gradient."""
    facts = {
        "std": step.std,
        "sigma": sigma,
        "next_sigma": next_sigma,
        "velocity_gain": step.velocity_gain,
        "kl_to_old": gaussian_kl(step, old.mean),
    }
    return Transition(**{name: fact[:, None] for name, fact in facts.items()})


def reference_batch(flow, name, dtype=torch.float64):
    """The live velocity, and the reference's four steps under it."""
    velocity, step, old = reference_pair(flow, name, dtype)
    next_x = flow("grpo/x_next", dtype)
    logp, old_logp = gaussian_logp(next_x, step), gaussian_logp(next_x, old)
    levels_of = (levels(level, next_x) for level in (0.6, 0.4))
    transition = describe(step, old, *levels_of)
    return velocity, batch(flow, logp, old_logp, dtype, transition)


def width(flow, case):
    low, high = flow(f"{case}/clip").tolist()
    return {"clip_low": -low, "clip_high": high}
