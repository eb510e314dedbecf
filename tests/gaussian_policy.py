"""A policy of Gaussian steps with a linear velocity field: a flow model without a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from tandem import rng
from tandem.dynamics.kernels import Kernel, Step, flow_sde, next_state, ode
from tandem.dynamics.likelihood import gaussian_kl, gaussian_logp
from tandem.dynamics.schedules import linear_shift
from tandem.policies.base import Policy
from tandem.types import Evidence, Prompt, Rollout, Transition

SIZE, FEATURES = 6, 3  # dimensions of a state; number of features
REACH = 0.6  # scale of a weight, at which gradient descent moves some steps beyond a clip
OF_STEPS = {"transition", "kl_to_old", "kl_to_ref"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianSample:
    """Steps x -> next_x of a prompt."""

    x: Tensor  # [B, T, D]
    next_x: Tensor  # [B, T, D]
    sigma: Tensor  # [B, T]
    next_sigma: Tensor  # [B, T]
    question: Tensor  # [B, T] int64 of the prompt
    taken: Tensor  # [B, T] int64, an identifier of the step
    old_mean: Tensor | None = None  # [B, T, D]; None: not requested


class GaussianPolicy(Policy):
    """velocity = x + sum_k w_k f_k(x, sigma, prompt), sampled by the kernels of flows."""

    exact = True

    def __init__(
        self, steps: int = 5, dtype: torch.dtype = torch.float64, *, kernel: Kernel = flow_sde
    ) -> None:
        super().__init__()
        noise = rng.normal(rng.key("field"), (FEATURES, SIZE)).to(dtype)
        self.table = nn.Parameter(noise)
        self.register_buffer("reference", -2 * noise.flip(1))
        self.steps, self.kernel, self.dtype = steps, kernel, dtype
        self.rows_seen: list[int] = []

    @torch.no_grad()
    def sample(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        *,
        key: int,
        slots: Sequence[int],
        sampling: int | None = None,
    ) -> Rollout:
        """`sampling`: the only random step; None: all but the last are random."""
        group = torch.tensor(list(slots)).repeat_interleave(group_size)
        rows = rng.key(key, group, torch.arange(group_size).repeat(len(prompts)))
        owners = tuple(p for p in prompts for _ in range(group_size))
        question = torch.tensor([p.id for p in owners])
        starts = rows if sampling is None else rng.key(key, group)
        x = rng.normal(rng.key(starts, "start"), (SIZE,)).to(self.dtype)
        random = self.branches() if sampling is None else [sampling]
        kept = []
        for number, levels in enumerate(pairwise(linear_shift(self.steps, 0).to(self.dtype))):
            sigma, next_sigma = (level.expand(len(rows)) for level in levels)
            clean = number not in random
            velocity = self.velocity(self.table, x, sigma, question)
            step = (ode if clean else self.kernel)(x, velocity, sigma, next_sigma)
            noise = rng.normal(rng.key(rows, number), (SIZE,))
            reached = next_state(step, 0 * noise if clean else noise, storage=self.dtype)
            kept += [] if clean else [(x, reached, sigma, next_sigma, rng.key(rows, number))]
            x = reached
        names = ("x", "next_x", "sigma", "next_sigma", "taken")
        columns = zip(names, zip(*kept, strict=True), strict=True)
        fields = {name: torch.stack(column, 1) for name, column in columns}
        asked = question[:, None].expand(-1, len(random))
        return self.rollout(GaussianSample(question=asked, **fields), x, group, owners, rows)

    def branches(self) -> list[int]:
        return list(range(self.steps - 1))

    def rollout(self, sample, x0: Tensor, group: Tensor, prompts, key: Tensor) -> Rollout:
        """The output is the digits of the pixels; it ends at a dark pixel."""
        mask = torch.ones_like(sample.sigma, dtype=torch.bool)
        digits = (50 * x0[:, :3]).abs().long() % 6
        outputs = tuple("".join(map(str, row)).split("0")[0] for row in digits.tolist())
        length = mask.sum(1)
        return Rollout(
            sample=sample, outputs=outputs, prompts=prompts, mask=mask, group=group, key=key,
            length=length, truncated=length < 0, behaviour_logp=self.logp_under(sample, self.table),
        )  # fmt: skip

    def velocity(self, table: Tensor, x: Tensor, sigma: Tensor, question: Tensor) -> Tensor:
        """The velocity [N, D]; x: [N, D], sigma and question: [N]."""
        about = torch.sin(1.0 + question.to(x.dtype))[:, None] * torch.ones_like(x)
        features = torch.stack([x.sin(), about, sigma[:, None] * about], 1)  # [N, K, D]
        return x + REACH * (table * features).sum(1)

    def step(self, sample: GaussianSample, table: Tensor) -> Step:
        """The step of all rows and steps, flattened."""
        x, sigma, next_sigma, question = (
            tensor.flatten(0, 1)
            for tensor in (sample.x, sample.sigma, sample.next_sigma, sample.question)
        )
        return self.kernel(x, self.velocity(table, x, sigma, question), sigma, next_sigma)

    def logp_under(self, sample: GaussianSample, table: Tensor) -> Tensor:
        """[B, T]"""
        step = self.step(sample, table)
        return gaussian_logp(sample.next_x.flatten(0, 1), step).view_as(sample.sigma)

    @torch.no_grad()
    def complete(self, rollout: Rollout, needs: frozenset[str]) -> Rollout:
        sample, known = rollout.sample, {}
        if "old_logp" in needs:
            known["old_logp"] = self.logp_under(sample, self.table)
        if "ref_logp" in needs:
            known["ref_logp"] = self.logp_under(sample, self.reference)
        if "old_kl_to_ref" in needs:
            gap = self.logp_under(sample, self.table) - self.logp_under(sample, self.reference)
            known["old_kl_to_ref"] = SIZE * gap
        if "kl_to_old" in needs:
            mean = self.step(sample, self.table).mean.view_as(sample.x)
            known["sample"] = replace(sample, old_mean=mean)
        return replace(rollout, **known)

    def evidence(self, rollout: Rollout, needs: frozenset[str]) -> Evidence:
        """NaN outside the mask, where a record may hold anything."""
        self.rows_seen.append(len(rollout.mask))
        sample = keep(rollout.sample, rollout.mask)
        step = self.step(sample, self.table)
        said = {"logp": gaussian_logp(sample.next_x.flatten(0, 1), step)}
        if "entropy" in needs:
            said["entropy"] = step.std.log()
        facts = {"std": step.std, "velocity_gain": step.velocity_gain}
        facts |= {"sigma": sample.sigma, "next_sigma": sample.next_sigma}
        if "kl_to_old" in needs:
            facts["kl_to_old"] = gaussian_kl(step, sample.old_mean.flatten(0, 1))
        if "kl_to_ref" in needs:
            facts["kl_to_ref"] = gaussian_kl(step, self.step(sample, self.reference).mean.detach())

        def inside(x: Tensor) -> Tensor:
            return torch.where(rollout.mask, x.view_as(sample.sigma), torch.nan)

        transition = None
        if needs & OF_STEPS:
            transition = Transition(**{name: inside(x) for name, x in facts.items()})
        return Evidence(**{name: inside(x) for name, x in said.items()}, transition=transition)

    def row_cost(self, rollout: Rollout) -> Tensor:
        return rollout.length

    def trainable(self) -> dict[str, nn.Parameter]:
        return {"table": self.table}

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"policy": [self.table]}


def keep(sample: GaussianSample, mask: Tensor) -> GaussianSample:
    """Steps outside the mask become harmless ones, because a kernel divides by its levels."""

    def column(tensor: Tensor, harmless: float) -> Tensor:
        tensor = tensor[:, : mask.shape[1]]
        return torch.where(mask.view(*mask.shape, *(1,) * (tensor.ndim - 2)), tensor, harmless)

    levels = {"sigma": 0.5, "next_sigma": 0.4}
    names = ("x", "next_x", "sigma", "next_sigma", "old_mean")
    named = {name: getattr(sample, name) for name in names}
    return replace(
        sample,
        question=sample.question[:, : mask.shape[1]],
        **{n: column(t, levels.get(n, 0.0)) for n, t in named.items() if t is not None},
    )
