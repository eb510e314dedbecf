"""A policy that is asked about pictures as a whole: velocity errors without a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from gaussian_policy import GaussianPolicy
from torch import Tensor

from tandem import draws
from tandem.algorithm import Algorithm
from tandem.dynamics.schedules import linear_shift
from tandem.policies.flow.snapshots import Snapshots
from tandem.types import Rollout

WEIGHTS = {"old_error": "old", "fast_error": "fast"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureSample:
    x0: Tensor  # [B, D]
    key: Tensor  # [B] int64 of the noise that is put on it
    question: Tensor  # [B] int64 of the prompt


class ErrorPolicy(GaussianPolicy):
    """Samples by Gaussian steps, and forgets them: each noise level of a picture is a step."""

    def __init__(self, algorithm: Algorithm, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(dtype=dtype)
        self.regression = algorithm.regression
        self.snapshots = Snapshots(self.trainable(), algorithm.snapshots)

    def rollout(self, sample, x0: Tensor, group: Tensor, prompts, key: Tensor) -> Rollout:
        sampled = super().rollout(sample, x0, group, prompts, key)
        shared = draws.key("regression", self.iteration, group)
        kept = PictureSample(
            x0=x0, key=shared if self.regression.shared else key, question=sample.question[:, 0]
        )
        mask = torch.ones(len(x0), self.regression.count, dtype=torch.bool)
        return replace(
            sampled, sample=kept, mask=mask, length=mask.sum(1), behaviour_logp=None
        )  # fmt: skip

    def errors(self, rollout: Rollout, needs: frozenset[str]) -> Mapping[str, Tensor]:
        """Outside the mask a record may hold anything, and gets NaN."""
        self.rows_seen.append(len(rollout.mask))
        sample, levels = rollout.sample, linear_shift(self.steps, 0)
        x, sigma, target = self.regression.noised(sample.x0, sample.key, levels)
        question = sample.question.repeat_interleave(self.regression.count)

        def error(table: Tensor) -> Tensor:
            velocity = self.velocity(table, x.flatten(0, 1), sigma.flatten(), question)
            return torch.where(rollout.mask[..., None], velocity.view_as(x) - target, torch.nan)

        others = {name: error(self.weights_of(name)) for name in needs if name.endswith("_error")}
        return {"error": error(self.table), "sigma": sigma} | others

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

    def updated(self) -> None:
        self.snapshots.after("update")

    def ended(self) -> None:
        self.snapshots.after("iteration")
