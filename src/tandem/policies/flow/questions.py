"""What is asked of a velocity field in training, flat: N points, an answer for each.

A question knows where the field is to be read, and what its answer says of the policy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tandem import draws
from tandem.dynamics.kernels import Kernel, Step
from tandem.dynamics.likelihood import LogProbability, gaussian_kl, step_log_ratio
from tandem.dynamics.path import interpolate, mean_square, velocity_between
from tandem.policies.flow.records import FlowSample

Levels = Callable[[Tensor, int], Tensor]  # (keys [N], count) -> sigma [N, count]
Answers = dict[str, Tensor]  # name -> [N]


class Question(Protocol):
    x: Tensor  # [N, ...]
    sigma: Tensor  # [N]

    def answers(self, velocity: Tensor, ref_velocity: Tensor | None) -> Answers: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """How likely steps were that were taken."""

    x: Tensor  # [N, ...]
    next_x: Tensor  # [N, ...]
    sigma: Tensor  # [N]
    next_sigma: Tensor  # [N]
    old_mean: Tensor | None  # [N, ...]; None: nobody asks how far the policy moved
    kernel: Kernel
    logp: LogProbability

    @classmethod
    def of(
        cls, sample: FlowSample, row: Tensor, step: Tensor, *, kernel: Kernel, logp: LogProbability
    ) -> Taken:
        """row, step: [N] int64."""
        taken = sample.trajectory
        place = taken.place[row, step]
        return cls(
            x=taken.path[row, place].float(),
            next_x=taken.path[row, place + 1].float(),
            sigma=taken.sigma[row, step],
            next_sigma=taken.next_sigma[row, step],
            old_mean=None if taken.mean is None else taken.mean[row, step],
            kernel=kernel,
            logp=logp,
        )

    def step(self, velocity: Tensor) -> Step:
        return self.kernel(self.x, velocity, self.sigma, self.next_sigma)

    def answers(self, velocity: Tensor, ref_velocity: Tensor | None) -> Answers:
        step = self.step(velocity)
        said = {
            "logp": self.logp(self.next_x, step),
            "std": step.std,
            "sigma": self.sigma,
            "next_sigma": self.next_sigma,
            "velocity_gain": step.velocity_gain,
        }
        if self.old_mean is not None:
            said["kl_to_old"] = gaussian_kl(step, self.old_mean)
        if ref_velocity is not None:
            reference = self.step(ref_velocity)
            said["kl_to_ref"] = gaussian_kl(step, reference.mean)
            said["log_ratio_to_ref"] = step_log_ratio(self.next_x, step, reference)
        return said


@dataclass(frozen=True, slots=True, kw_only=True)
class Regressed:
    """How well the velocity of pictures is known, at noise that was put on them.

    `logp` is minus the mean squared error: up to a constant and a weight of the noise level, a
    bound of the picture's log-probability per latent dimension.
    """

    x: Tensor  # [N, ...]
    sigma: Tensor  # [N]
    target: Tensor  # [N, ...] noise - x0

    @classmethod
    def of(cls, sample: FlowSample, row: Tensor, *, count: int, levels: Levels) -> Regressed:
        """`count` noise levels for each row, one after the other: N = count * len(row)."""
        keys, x0 = sample.key[row], sample.x0[row].repeat_interleave(count, 0)
        sigma = levels(draws.key(keys, "sigma"), count).to(x0.dtype).flatten()
        noise = draws.normal(draws.key(keys, "noise"), (count, *x0.shape[1:])).flatten(0, 1)
        target = velocity_between(x0, noise)
        return cls(x=interpolate(x0, noise, sigma), sigma=sigma, target=target)

    def answers(self, velocity: Tensor, ref_velocity: Tensor | None) -> Answers:
        return {"logp": -mean_square(velocity - self.target, self.sigma)}


def logit_normal(keys: Tensor, count: int, *, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """sigmoid(mean + std z): what Stable Diffusion 3 was trained on (arXiv:2403.03206)."""
    return torch.sigmoid(mean + std * draws.normal(keys, (count,)))


def uniform(keys: Tensor, count: int, *, low: float = 0.0, high: float = 1.0) -> Tensor:
    """One level in each of `count` equal parts of (low, high)."""
    part = torch.arange(count, device=keys.device)
    return low + (high - low) * (part + draws.uniform(keys, (count,))) / count
