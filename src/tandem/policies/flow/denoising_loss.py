"""Velocity errors of pictures: at fresh noise, or at states where a teacher is queried."""

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
    """N points of a rollout at which velocities are evaluated, with their targets."""

    mask: Tensor  # [B, levels of a row] bool; if all False, one point of weight 0 is evaluated
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
    """Evaluates velocity fields at noised pictures, in chunks of points."""

    def __init__(
        self, regression: Regression, schedule: Callable[..., Tensor], forward: ChunkedForward
    ) -> None:
        """`schedule`: size of a picture -> the sampler's noise levels, from 1 to 0."""
        self.regression, self.schedule, self.forward = regression, schedule, forward

    def errors(
        self, model: FlowModel, rollout: Rollout, needs: frozenset[str]
    ) -> dict[str, Tensor]:
        """name -> [B, T, D] errors and [B, T] facts, 0 outside the mask; "error" has a gradient.

        Snapshots and the reference run first: swapping weights later would invalidate the live
        graph. A snapshot that equals the live weights takes no pass.
        """
        at = self.points(model, rollout)
        found = self._snapshot_errors(model, rollout, at, needs)
        own = self._error(model.field, rollout, at, scale=self.regression.guidance_scale)
        live = {
            name: own.detach()
            for name, snapshot in OF_SNAPSHOTS.items()
            if name in needs and model.snapshots.is_live(snapshot)
        }
        said = found | live | {"error": own, "sigma": at.sigma}
        return {name: at.spread(x) for name, x in said.items()} | _facts(rollout, needs)

    @torch.no_grad()
    def _snapshot_errors(
        self, model: FlowModel, rollout: Rollout, at: RegressionPoints, needs: frozenset[str]
    ) -> dict[str, Tensor]:
        found = {}
        for name, snapshot in OF_SNAPSHOTS.items():
            if name in needs and not model.snapshots.is_live(snapshot):
                with model.snapshots.use(snapshot):
                    scale = self.regression.guidance_scale
                    found[name] = self._error(model.field, rollout, at, scale=scale)
        if "ref_error" in needs:
            with model.reference() as field:
                scale = self.regression.ref_guidance_scale
                found["ref_error"] = self._error(field, rollout, at, scale=scale)
        return found

    def logp(self, field: VelocityModel, rollout: Rollout, *, of_reference: bool = False) -> Tensor:
        """-weighting(sigma, mean of error^2), the mean over the noise levels of a step: [B, T].

        It replaces a log-probability in nats.
        """
        own = self.regression
        scale = own.ref_guidance_scale if of_reference else own.guidance_scale
        at = self.fresh(rollout)
        error = self._error(field, rollout, at, scale=scale)
        logp = at.spread(-own.weighting(at.sigma, energy(error)))
        return logp.view(*rollout.mask.shape, -1).mean(-1)

    def points(self, model: FlowModel, rollout: Rollout) -> RegressionPoints:
        """The points at which a rollout is evaluated."""
        if rollout.sample.trajectory is None:
            return self.fresh(rollout)
        return self.points_on_path(model, rollout)

    def fresh(self, rollout: Rollout) -> RegressionPoints:
        """Points at fresh noise on finished pictures; a row's steps share its levels evenly."""
        sample, count = rollout.sample, self.regression.count
        levels = self.schedule(rollout.prompts[0].size)
        x, sigma, target = self.regression.add_noise(sample.x0, sample.key, levels)
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
    def points_on_path(self, model: FlowModel, rollout: Rollout) -> RegressionPoints:
        """Points at the states of the sampled path, with a teacher's velocity as the target."""
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
    """Facts of the sampler's steps at these points."""
    taken = rollout.sample.trajectory
    return {
        name: torch.where(rollout.mask, getattr(taken, name), 0)
        for name in OF_STEPS
        if name in needs
    }
