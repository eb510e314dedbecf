"""Velocity errors of pictures: at noise that is put on them, or where a teacher is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.dynamics.regression import Regression, energy
from tandem.policies.flow.model import FlowModel
from tandem.policies.flow.records import pick, scatter
from tandem.policies.flow.velocity_model import ChunkedForward, VelocityModel
from tandem.types import OF_SNAPSHOTS, Rollout

OF_STEPS = ("std", "velocity_gain")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegressionPoints:
    """Where velocities are asked for: N points of a rollout, and the truth there."""

    mask: Tensor  # [B, levels of a row] bool: all that are asked for; none: one that counts nothing
    row: Tensor  # [N] int64
    column: Tensor  # [N] int64, the noise level of the row
    x: Tensor  # [N, ...]
    sigma: Tensor  # [N]
    target: Tensor  # [N, ...]

    def __len__(self) -> int:
        return len(self.row)

    def spread(self, values: Tensor) -> Tensor:
        """[N, ...] -> [B, levels, ...], 0 outside the mask."""
        return scatter(values, self.row, self.column, self.mask)


class DenoisingErrors:
    """Asks velocity fields about pictures, a few points at a time."""

    def __init__(
        self, regression: Regression, schedule: Callable[..., Tensor], forward: ChunkedForward
    ) -> None:
        """`schedule`: size of a picture -> the noise levels of the sampler, from 1 to 0."""
        self.regression, self.schedule, self.forward = regression, schedule, forward

    def errors(
        self, model: FlowModel, rollout: Rollout, needs: frozenset[str]
    ) -> dict[str, Tensor]:
        """name -> [B, T, D] errors and [B, T] facts, 0 outside the mask; "error" has a gradient.

        Whoever is compared with is asked first: the graph of the live weights must find them as
        it left them. A snapshot that is the live weights is not asked at all.
        """
        at = self.points(model, rollout)
        found = self._of_others(model, rollout, at, needs)
        own = self._error(model.field, rollout, at, scale=self.regression.guidance_scale)
        live = {
            name: own.detach()
            for name, snapshot in OF_SNAPSHOTS.items()
            if name in needs and model.snapshots.is_live(snapshot)
        }
        said = found | live | {"error": own, "sigma": at.sigma}
        return {name: at.spread(x) for name, x in said.items()} | _facts(rollout, needs)

    @torch.no_grad()
    def _of_others(
        self, model: FlowModel, rollout: Rollout, at: RegressionPoints, needs: frozenset[str]
    ) -> dict[str, Tensor]:
        found = {}
        for name, snapshot in OF_SNAPSHOTS.items():
            if name in needs and not model.snapshots.is_live(snapshot):
                with model.snapshots.under(snapshot):
                    scale = self.regression.guidance_scale
                    found[name] = self._error(model.field, rollout, at, scale=scale)
        if "ref_error" in needs:
            with model.reference() as field:
                scale = self.regression.ref_guidance_scale
                found["ref_error"] = self._error(field, rollout, at, scale=scale)
        return found

    def logp(self, field: VelocityModel, rollout: Rollout, *, of_reference: bool = False) -> Tensor:
        """-weighting(sigma, mean of error^2), the mean over the noise levels of a step: [B, T].

        In place of nats.
        """
        own = self.regression
        scale = own.ref_guidance_scale if of_reference else own.guidance_scale
        at = self.fresh(rollout)
        error = self._error(field, rollout, at, scale=scale)
        logp = at.spread(-own.weighting(at.sigma, energy(error)))
        return logp.view(*rollout.mask.shape, -1).mean(-1)

    def points(self, model: FlowModel, rollout: Rollout) -> RegressionPoints:
        """The points at which a rollout is asked about."""
        if rollout.sample.trajectory is None:
            return self.fresh(rollout)
        return self.on_the_way(model, rollout)

    def fresh(self, rollout: Rollout) -> RegressionPoints:
        """Noise on the finished pictures; each step of a row has an equal share of its levels."""
        sample, count = rollout.sample, self.regression.count
        levels = self.schedule(rollout.prompts[0].size)
        x, sigma, target = self.regression.noised(sample.x0, sample.key, levels)
        share = count // rollout.mask.shape[1]
        mask = rollout.mask.repeat_interleave(share, 1)
        row, column = pick(mask)
        return RegressionPoints(
            mask=mask,
            row=row,
            column=column,
            x=x[row, column],
            sigma=sigma[row, column],
            target=target[row, column],
        )

    @torch.no_grad()
    def on_the_way(self, model: FlowModel, rollout: Rollout) -> RegressionPoints:
        """The states of the sampled path, where a teacher says what the velocity is."""
        taken = rollout.sample.trajectory
        row, column = pick(rollout.mask)
        x = taken.path[row, taken.place[row, column]].float()
        sigma = taken.sigma[row, column]
        target = torch.zeros_like(x)
        asked = [rollout.prompts[i] for i in row.tolist()]
        for teacher, points in model.teachers.of(asked, x.device):
            at = [asked[i] for i in points.tolist()], x[points], sigma[points]
            scale = self.regression.ref_guidance_scale
            target[points] = self.forward(teacher, *at, scale=scale)[0]
        return RegressionPoints(
            mask=rollout.mask, row=row, column=column, x=x, sigma=sigma, target=target
        )

    def _error(
        self, field: VelocityModel, rollout: Rollout, at: RegressionPoints, *, scale: float
    ) -> Tensor:
        """predicted - true velocity: [N, D]"""
        prompts = [rollout.prompts[i] for i in at.row.tolist()]
        velocity, _ = self.forward(field, prompts, at.x, at.sigma, scale=scale)
        return (velocity - at.target).flatten(1)


def _facts(rollout: Rollout, needs: frozenset[str]) -> dict[str, Tensor]:
    """Of the steps that the sampler took from there."""
    taken = rollout.sample.trajectory
    return {
        name: torch.where(rollout.mask, getattr(taken, name), 0)
        for name in OF_STEPS
        if name in needs
    }
