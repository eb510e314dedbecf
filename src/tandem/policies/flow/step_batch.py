"""Log-probabilities of N recorded denoising steps, flat."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tandem.dynamics.kernels import Kernel, Step
from tandem.dynamics.likelihood import LogProbability, gaussian_kl, step_log_ratio
from tandem.policies.flow.records import FlowSample

Answers = dict[str, Tensor]  # name -> [N]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """Steps of a path, each with the state that it came to."""

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
    ) -> StepBatch:
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
