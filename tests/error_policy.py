"""Policies without a network that provide velocity errors: of finished images, and against a
teacher's velocity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from gaussian_policy import GaussianPolicy, GaussianSample, keep
from torch import Tensor

from tandem import rng
from tandem.algorithm.algorithm import Algorithm
from tandem.dynamics.schedules import linear_shift
from tandem.policies.flow.records import renew_noise
from tandem.policies.flow.snapshots import Snapshots
from tandem.types import Rollout

WEIGHTS = {"old_error": "old", "fast_error": "fast"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureSample:
    x0: Tensor  # [B, D]
    key: Tensor  # [B] int64, the key of its noise
    question: Tensor  # [B] int64 of the prompt


class ErrorPolicy(GaussianPolicy):
    """Samples by Gaussian steps and discards them: each noise level of an image is a step."""

    def __init__(self, algorithm: Algorithm, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(dtype=dtype)
        self.regression = algorithm.timestep_sampling
        self.snapshots = Snapshots(self.trainable(), algorithm.ema)

    def rollout(self, sample, x0: Tensor, group: Tensor, prompts, key: Tensor) -> Rollout:
        sampled = super().rollout(sample, x0, group, prompts, key)
        shared = rng.key("regression", self.iteration, group)
        picture = PictureSample(
            x0=x0, key=shared if self.regression.shared else key, question=sample.question[:, 0]
        )
        mask = torch.ones(len(x0), self.regression.count, dtype=torch.bool)
        return replace(
            sampled, sample=picture, mask=mask, length=mask.sum(1), behaviour_logp=None
        )  # fmt: skip

    def resample_noise(self, rollout: Rollout, epoch: int) -> Rollout:
        return renew_noise(rollout, epoch)

    def errors(self, rollout: Rollout, needs: frozenset[str]) -> Mapping[str, Tensor]:
        """Outside the mask, where a record may hold anything, values are NaN."""
        self.rows_seen.append(len(rollout.mask))
        _, sigma, target = self.points(rollout)

        def error(table: Tensor) -> Tensor:
            velocity = self.velocity_at(rollout, table)
            return torch.where(rollout.mask[..., None], velocity - target, torch.nan)

        others = {name: error(self.weights_of(name)) for name in needs if name.endswith("_error")}
        return {"error": error(self.table), "sigma": sigma} | others

    def points(self, rollout: Rollout) -> tuple[Tensor, Tensor, Tensor]:
        """x and the true velocity [B, T, D] at the noise levels; in the middle sigma [B, T]."""
        levels = linear_shift(self.steps, 0)
        return self.regression.add_noise(rollout.sample.x0, rollout.sample.key, levels)

    def velocity_at(self, rollout: Rollout, table: Tensor) -> Tensor:
        """[B, T, D]"""
        x, sigma, _ = self.points(rollout)
        question = rollout.sample.question.repeat_interleave(self.regression.count)
        return self.velocity(table, x.flatten(0, 1), sigma.flatten(), question).view_as(x)

    def weights_of(self, name: str) -> Tensor:
        if name == "ref_error":
            return self.reference
        snapshot = WEIGHTS[name]
        live = self.snapshots.is_live(snapshot)
        return (
            self.table.detach()
            if live
            else self.snapshots.weights[snapshot]["table"].to(self.dtype)
        )

    def notify(self, event: str) -> None:
        self.snapshots.follow(event)


class TaughtPolicy(GaussianPolicy):
    """A teacher, another field of the same family, gives the velocity at every sampled step."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(dtype=dtype)
        self.register_buffer("teacher", 0.5 * self.table.detach().roll(1, dims=1))

    def rollout(self, sample, x0: Tensor, group: Tensor, prompts, key: Tensor) -> Rollout:
        sampled = super().rollout(sample, x0, group, prompts, key)
        return replace(sampled, behaviour_logp=None)

    def errors(self, rollout: Rollout, needs: frozenset[str]) -> Mapping[str, Tensor]:
        """Outside the mask, where a record may hold anything, values are NaN."""
        self.rows_seen.append(len(rollout.mask))
        sample = keep(rollout.sample, rollout.mask)
        target = self.velocity_at(sample, self.teacher)
        step = self.step(sample, self.table)
        facts = {"std": step.std, "velocity_gain": step.velocity_gain, "sigma": sample.sigma}
        tables = {"error": self.table, "ref_error": self.reference}
        asked = needs | {"error", "sigma"}
        errors = {
            name: torch.where(
                rollout.mask[..., None], self.velocity_at(sample, table) - target, torch.nan
            )
            for name, table in tables.items()
            if name in asked
        }
        return errors | {
            name: torch.where(rollout.mask, x.view_as(rollout.mask), torch.nan)
            for name, x in facts.items()
            if name in asked
        }

    def velocity_at(self, sample: GaussianSample, table: Tensor) -> Tensor:
        """[B, T, D]"""
        points = (x.flatten(0, 1) for x in (sample.x, sample.sigma, sample.question))
        return self.velocity(table, *points).view_as(sample.x)
