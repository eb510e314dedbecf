"""A generator without a network and the networks trained beside it: tables of one linear field
along the path of an ODE."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from gaussian_policy import GaussianPolicy, keep
from torch import Tensor, nn

from tandem import rng
from tandem.algorithm.algorithm import Algorithm
from tandem.dynamics.kernels import ode
from tandem.dynamics.matching import QueryPoints, noise_again
from tandem.policies.flow.matching import one_of_each
from tandem.policies.flow.snapshots import Snapshots
from tandem.types import OF_SNAPSHOTS, NetworkAnswer, Rollout, map_fields


class MatchingPolicy(GaussianPolicy):
    """`table` is the generator's weight, `beside` those of the networks trained beside it."""

    def __init__(self, algorithm: Algorithm, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(dtype=dtype, kernel=ode)
        self.algorithm = algorithm
        tables = {
            name: nn.Parameter(self.table.detach() * (0.5 + place))
            for place, name in enumerate(algorithm.networks)
        }
        self.beside = nn.ParameterDict(tables)
        asked = algorithm.request(None).networks
        self.averages = {
            name: Snapshots({"table": table}, asked[name].snapshots)
            for name, table in tables.items()
        }

    def rollout(self, sample, x0: Tensor, group: Tensor, prompts, key: Tensor) -> Rollout:
        """With a shared key all samples of a group get the same noise at each level."""
        sampled = super().rollout(sample, x0, group, prompts, key)
        level = (1000 * sample.sigma).round().long()
        shared = rng.key("query", self.iteration, group[:, None], level)
        if self.algorithm.timestep_sampling.shared:
            sample = replace(sample, taken=shared)
        mask = sampled.mask if self.algorithm.every_state else one_of_each(sampled.mask, key)
        return replace(sampled, sample=sample, mask=mask, behaviour_logp=None)

    def logp_under(self, sample, table: Tensor) -> Tensor:
        """Steps of an ODE have no log-probabilities: [B, T] of 0."""
        return torch.zeros_like(sample.sigma)

    def matching(
        self, rollout: Rollout, needs: frozenset[str], *, rests: bool
    ) -> tuple[Mapping[str, Tensor], Mapping[str, NetworkAnswer]]:
        """Outside the mask, where a record may hold anything, values are NaN."""
        self.rows_seen.append(len(rollout.mask))
        sample = keep(rollout.sample, rollout.mask)
        x, before, after, question = (
            tensor.flatten(0, 1)
            for tensor in (sample.x, sample.sigma, sample.next_sigma, sample.question)
        )
        table = self.table.detach() if rests else self.table
        x0 = x - before[:, None] * self.velocity(table, x, before, question)
        keys = sample.taken[:, : rollout.mask.shape[1]].flatten()
        at = noise_again(self.algorithm.query, x, x0.detach(), (before, after), keys)
        velocity = partial(self.velocity, x=at.x, sigma=at.sigma, question=question)
        real, spread = velocity(self.reference), partial(self.spread, mask=rollout.mask)
        said = {"real_x0": at.x - at.sigma[:, None] * real, "ref_error": real - at.target}
        said |= {"x0": x0, "of_prompt": 0.1 * at.x, "sigma": at.sigma, "importance": at.importance}
        names = needs | {"x0", "sigma", "importance"}
        networks = {name: self.answer(name, velocity, at) for name in self.beside}
        asked = {name: x for name, x in said.items() if name in names}
        return map_fields(asked, spread), map_fields(networks, spread)

    def answer(self, name: str, velocity: Callable, at: QueryPoints) -> NetworkAnswer:
        own, kept = velocity(self.beside[name]), self.averages[name].weights
        older = {
            field: velocity(kept[snapshot]["table"].to(self.dtype)) - at.target
            for field, snapshot in OF_SNAPSHOTS.items()
            if snapshot in kept
        }
        x0 = (at.x - at.sigma[:, None] * own).detach()
        return NetworkAnswer(error=own - at.target, x0=x0, **older)

    def spread(self, values: Tensor, mask: Tensor) -> Tensor:
        """[B T, ...] -> [B, T, ...], NaN outside the mask."""
        shaped = values.view(*mask.shape, *values.shape[1:])
        inside = mask if values.ndim == 1 else mask[..., None]
        return torch.where(inside, shaped, torch.nan)

    def notify(self, event: str) -> None:
        for averages in self.averages.values():
            averages.follow(event)

    def trainable(self) -> dict[str, nn.Parameter]:
        return super().trainable() | dict(self.beside)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return super().groups() | {name: [table] for name, table in self.beside.items()}
