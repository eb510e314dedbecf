"""A generator without a network, and the networks that learn beside it: tables of one linear field
along the path of an ODE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from gaussian_policy import GaussianPolicy, kept
from torch import Tensor, nn

from tandem import rng
from tandem.algorithm.algorithm import Algorithm
from tandem.dynamics.kernels import ode
from tandem.dynamics.matching import noise_again
from tandem.policies.flow.matching import one_of_each
from tandem.policies.flow.snapshots import Snapshots
from tandem.types import OF_SNAPSHOTS, Rollout


class MatchingPolicy(GaussianPolicy):
    """What the table is to a generator, `beside` are to the fake score and the surrogate."""

    def __init__(self, algorithm: Algorithm, dtype: torch.dtype = torch.float64) -> None:
        super().__init__(dtype=dtype, kernel=ode)
        self.algorithm = algorithm
        tables = {
            name: nn.Parameter(self.table.detach() * (0.5 + place))
            for place, name in enumerate(algorithm.networks)
        }
        self.beside = nn.ParameterDict(tables)
        following = algorithm.ema if "surrogate" in tables else {}
        self.snapshots = Snapshots({"table": tables[[*tables][-1]]}, following)

    def rollout(self, sample, x0: Tensor, group: Tensor, prompts, key: Tensor) -> Rollout:
        """At a shared key all samples of a group are asked by the same noise at each level."""
        sampled = super().rollout(sample, x0, group, prompts, key)
        level = (1000 * sample.sigma).round().long()
        shared = rng.key("query", self.iteration, group[:, None], level)
        if self.algorithm.timestep_sampling.shared:
            sample = replace(sample, taken=shared)
        mask = sampled.mask if self.algorithm.every_state else one_of_each(sampled.mask, key)
        return replace(sampled, sample=sample, mask=mask, behaviour_logp=None)

    def logp_under(self, sample, table: Tensor) -> Tensor:
        """Steps of an ODE have none: [B, T] of 0."""
        return torch.zeros_like(sample.sigma)

    def matching(
        self, rollout: Rollout, needs: frozenset[str], *, rests: bool
    ) -> Mapping[str, Tensor]:
        """Outside the mask a record may hold anything, and gets NaN."""
        self.rows_seen.append(len(rollout.mask))
        sample = kept(rollout.sample, rollout.mask)
        x, before, after, question = (
            tensor.flatten(0, 1)
            for tensor in (sample.x, sample.sigma, sample.next_sigma, sample.question)
        )
        table = self.table.detach() if rests else self.table
        x0 = x - before[:, None] * self.velocity(table, x, before, question)
        keys = sample.taken[:, : rollout.mask.shape[1]].flatten()
        at = noise_again(self.algorithm.query, x, x0.detach(), (before, after), keys)
        velocity = partial(self.velocity, x=at.x, sigma=at.sigma, question=question)
        own = {name: velocity(table) for name, table in self.beside.items()}
        own["real"] = velocity(self.reference)
        said = {f"{name}_x0": (at.x - at.sigma[:, None] * v).detach() for name, v in own.items()}
        said |= {f"{name}_error": v - at.target for name, v in own.items() if name != "real"}
        said["ref_error"] = own["real"] - at.target
        for name, snapshot in OF_SNAPSHOTS.items():
            if snapshot in self.snapshots.weights:
                older = self.snapshots.weights[snapshot]["table"].to(self.dtype)
                said[name] = velocity(older) - at.target
        said |= {"x0": x0, "of_prompt": 0.1 * at.x, "sigma": at.sigma, "importance": at.importance}
        names = needs | {"x0", "sigma", "importance"}
        return {name: self.spread(x, rollout.mask) for name, x in said.items() if name in names}

    def spread(self, values: Tensor, mask: Tensor) -> Tensor:
        """[B T, ...] -> [B, T, ...], NaN outside the mask."""
        shaped = values.view(*mask.shape, *values.shape[1:])
        inside = mask if values.ndim == 1 else mask[..., None]
        return torch.where(inside, shaped, torch.nan)

    def notify(self, event: str) -> None:
        self.snapshots.follow(event)

    def trainable(self) -> dict[str, nn.Parameter]:
        return super().trainable() | dict(self.beside)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return super().groups() | {name: [table] for name, table in self.beside.items()}
