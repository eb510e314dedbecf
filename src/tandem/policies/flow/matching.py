"""Distribution matching: a generator's predictions at its states, and other networks' at those."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem import distributed, rng
from tandem.dynamics.matching import Query, QueryPoints, noise_again
from tandem.dynamics.path import x0_from_velocity
from tandem.policies.flow.model import FlowModel
from tandem.policies.flow.records import pick, scatter
from tandem.policies.flow.snapshots import OF_REAL
from tandem.policies.flow.velocity_model import ChunkedForward, VelocityModel
from tandem.policies.request import Request
from tandem.types import OF_SNAPSHOTS, NetworkAnswer, Prompt, Rollout, align_level, map_fields

PLAIN = 1.0  # guidance scale of the networks that are trained beside the generator


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """The N trained states of a rollout."""

    mask: Tensor  # [B, T] bool
    row: Tensor  # [N] int64
    column: Tensor  # [N] int64
    prompts: Sequence[Prompt]
    x: Tensor  # [N, ...]
    ends: tuple[Tensor, Tensor]  # sigma before and after the step: [N]
    key: Tensor  # [N] int64 of the noise of queries

    @classmethod
    def of(cls, rollout: Rollout) -> States:
        taken = rollout.sample.trajectory
        row, column = pick(rollout.mask)
        return cls(
            mask=rollout.mask,
            row=row,
            column=column,
            prompts=[rollout.prompts[i] for i in row.tolist()],
            x=taken.path[row, taken.place[row, column]].float(),
            ends=(taken.sigma[row, column], taken.next_sigma[row, column]),
            key=rng.key(rollout.sample.key[row], column),
        )

    def spread(self, values: Tensor) -> Tensor:
        """[N] or [N, ...] -> [B, T] or [B, T, D], 0 outside the mask."""
        flat = values if values.ndim == 1 else values.flatten(1)
        return scatter(flat, self.row, self.column, self.mask)


class MatchingQueries:
    """Evaluates the generator at its states, and the other networks at its predictions."""

    def __init__(self, request: Request, query: Query, forward: ChunkedForward) -> None:
        self.networks, self.query, self.forward = request.networks, query, forward
        asked = request.timesteps
        self.scale, self.ref_scale = asked.guidance_scale, asked.ref_guidance_scale

    def answers(
        self, model: FlowModel, rollout: Rollout, needs: frozenset[str], *, rests: bool
    ) -> tuple[dict[str, Tensor], dict[str, NetworkAnswer]]:
        """The fields of a `MatchingBatch`, [B, T] and [B, T, D]: those in `needs`, others that are
        free, and each network's answer. `rests`: the generator gets no gradient in this update,
        so guided predictions are not needed."""
        states = States.of(rollout)
        x0 = self._predict_x0(model, states, rests=rests)
        with torch.no_grad():
            at = noise_again(self.query, states.x, x0.detach(), states.ends, states.key)
        found = self._of_reference(model, states, at, needs) if needs & OF_REAL else {}
        networks = {
            name: self._of_network(model, name, states, at, plain=rests or not asked.guided)
            for name, asked in self.networks.items()
        }
        found |= {"x0": x0, "sigma": at.sigma, "importance": at.importance}
        return map_fields(found, states.spread), map_fields(networks, states.spread)

    def _predict_x0(self, model: FlowModel, states: States, *, rests: bool) -> Tensor:
        """The generator's prediction of x0: [N, ...]"""
        # Several ranks wait for gradients of all weights.
        learns = torch.is_grad_enabled() and (not rests or distributed.world_size() > 1)
        with torch.set_grad_enabled(learns):
            velocity = self._velocity(model.field, states, states.x, states.ends[0], self.scale)
            return x0_from_velocity(states.x, velocity, states.ends[0])

    @torch.no_grad()
    def _of_reference(
        self, model: FlowModel, states: States, at: QueryPoints, needs: frozenset[str]
    ) -> dict[str, Tensor]:
        guided, velocity = self.ref_scale > PLAIN, torch.zeros_like(at.x)
        plain = torch.zeros_like(at.x)
        with _references(model, states) as fields:
            for field, points in fields:
                some = [states.prompts[i] for i in points.tolist()]
                where = (field, some, at.x[points], at.sigma[points])
                velocity[points] = self.forward(*where, scale=self.ref_scale)[0]
                if guided and "of_prompt" in needs:
                    plain[points] = self.forward(*where, scale=PLAIN)[0]
        found = {
            "real_x0": x0_from_velocity(at.x, velocity, at.sigma),
            "ref_error": velocity - at.target,
        }
        if "of_prompt" in needs:
            gain = (plain - velocity) / (self.ref_scale - PLAIN) if guided else plain
            found["of_prompt"] = align_level(at.sigma, at.x) * gain
        return found

    def _of_network(
        self, model: FlowModel, name: str, states: States, at: QueryPoints, *, plain: bool
    ) -> NetworkAnswer:
        """The error of a trained network, with gradient, and its predicted x0, without.

        `plain`: without guidance.
        """
        field, averages = model.beside[name], model.averages[name]
        where, found = (states, at.x, at.sigma), {}
        followed = {key: x for key, x in OF_SNAPSHOTS.items() if x in averages.following}
        for key, snapshot in followed.items():  # first: a later swap would invalidate the graph
            if not averages.is_live(snapshot):
                with torch.no_grad(), averages.use(snapshot):
                    found[key] = self._velocity(field, *where, PLAIN) - at.target
        velocity = self._velocity(field, *where, PLAIN)
        error, expected = velocity - at.target, velocity.detach()
        if not plain and self.ref_scale > PLAIN:
            with torch.no_grad():
                expected = self._velocity(field, *where, self.ref_scale)
        live = {key: error.detach() for key in followed if key not in found}
        expected = x0_from_velocity(at.x, expected, at.sigma)
        return NetworkAnswer(error=error, x0=expected, **found, **live)

    def _velocity(
        self, field: VelocityModel, states: States, x: Tensor, sigma: Tensor, scale: float
    ) -> Tensor:
        return self.forward(field, states.prompts, x, sigma, scale=scale)[0]


@contextmanager
def _references(
    model: FlowModel, states: States
) -> Iterator[Iterable[tuple[VelocityModel, Tensor]]]:
    """The networks that define real pictures, each with the indices of its points: [n] int64.
    Teachers by the source of a prompt, or else the initial policy."""
    if model.teachers is not None:
        yield model.teachers.of(states.prompts, states.x.device)
        return
    with model.reference() as field:
        yield [(field, torch.arange(len(states.prompts), device=states.x.device))]


def one_of_each(mask: Tensor, keys: Tensor) -> Tensor:
    """One step of each row, drawn by its key: [B, T] bool; keys: [B] int64."""
    count = mask.shape[1]
    drawn = (rng.uniform(rng.key(keys, "state")) * count).long()
    return mask & torch.nn.functional.one_hot(drawn, count).bool()
