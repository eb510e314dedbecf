"""The training forward of a flow: what a field says of the random steps of a rollout."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tandem.dynamics.kernels import Kernel, Step
from tandem.dynamics.likelihood import LogProbability, gaussian_kl, step_log_ratio
from tandem.policies.flow.embeddings import PromptEmbeddingCache
from tandem.policies.flow.model import FlowModel
from tandem.policies.flow.records import FlowSample, FlowSampling
from tandem.policies.flow.rows import picked, scattered
from tandem.policies.flow.sampling import even_parts, filled
from tandem.policies.flow.velocity_model import VelocityModel
from tandem.types import Evidence, Rollout, Transition

KLS = ("kl_to_old", "kl_to_ref")
TRANSITION = ("std", "sigma", "next_sigma", "velocity_gain")

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


class StepLogProbComputer:
    """Steps x pictures are flattened into rows of the network."""

    def __init__(
        self, library: PromptEmbeddingCache, sampling: FlowSampling, *, max_rows: int
    ) -> None:
        if max_rows < 1:
            raise ValueError(f"model.row_budget is {max_rows}; it must be at least 1")
        self.library, self.sampling, self.max_rows = library, sampling, max_rows

    def evidence(self, model: FlowModel, rollout: Rollout, needs: frozenset[str]) -> Evidence:
        said = self.answers(model.field, rollout, needs, model)
        plain = {"logp": said["logp"], "values": said.get("values")}
        asked = needs & {"transition", *KLS}
        if not asked:
            return Evidence(**plain)
        assert asked <= {"transition", *said}, "complete() was not told that old means are needed"
        facts = {name: said[name].detach() for name in TRANSITION}
        kls = {name: said[name] for name in KLS if name in needs}
        return Evidence(**plain, transition=Transition(**facts, **kls))

    def answers(
        self,
        field: VelocityModel,
        rollout: Rollout,
        needs: frozenset[str] = frozenset(),
        model: FlowModel | None = None,
    ) -> Answers:
        """name -> [B, T], 0 outside the mask. `model`: of the reference and the critic.

        Parts are recomputed one by one in backward, so that the memory is that of one of them.
        """
        row, step = picked(rollout.mask)
        parts = even_parts(len(row), self.max_rows, field.weights.passes)
        recompute = len(parts) > 1 and torch.is_grad_enabled()
        said = []
        for part in parts:
            at = (row[filled(part)], step[filled(part)])
            asking = ForwardChunk(
                self.library, rollout, at[0], self._taken(rollout, *at), needs, model
            )
            answers = asking.answers(field, recompute=recompute)
            said.append({name: x[: len(part)] for name, x in answers.items()})
        flat = {name: torch.cat([answers[name] for answers in said]) for name in said[0]}
        return {name: scattered(x, row, step, rollout.mask) for name, x in flat.items()}

    @torch.no_grad()
    def logp(self, field: VelocityModel, rollout: Rollout) -> Tensor:
        """[B, T], without gradient."""
        return self.answers(field, rollout)["logp"]

    @torch.no_grad()
    def steps_again(self, field: VelocityModel, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Of one pass without gradient: how likely the steps are, [B, T], and where they would
        have gone on average, [B, T, ...] float32."""
        row, step = picked(rollout.mask)
        path = rollout.sample.trajectory.path
        means = path.new_zeros(*rollout.mask.shape, *path.shape[2:], dtype=torch.float32)
        logp = []
        for part in even_parts(len(row), self.max_rows):
            at = (row[part], step[part])
            taken = self._taken(rollout, *at)
            asking = ForwardChunk(self.library, rollout, at[0], taken, frozenset(), None)
            again = taken.step(asking.velocity(field))
            logp.append(self.sampling.logp(taken.next_x, again))
            means[at] = again.mean
        return scattered(torch.cat(logp), row, step, rollout.mask), means

    def _taken(self, rollout: Rollout, row: Tensor, step: Tensor) -> StepBatch:
        kernel, logp = self.sampling.kernel, self.sampling.logp
        return StepBatch.of(rollout.sample, row, step, kernel=kernel, logp=logp)


class ForwardChunk:
    """One part: its steps, and the prompts that go with them."""

    def __init__(
        self,
        library: PromptEmbeddingCache,
        rollout: Rollout,
        row: Tensor,
        taken: StepBatch,
        needs: frozenset[str],
        model: FlowModel | None,
    ) -> None:
        self.taken, self.needs, self.model = taken, needs, model
        scales = set(rollout.sample.guidance[row].tolist())
        if len(scales) > 1:
            raise ValueError(
                f"rows of guidance scales {sorted(scales)} cannot share a forward pass; "
                "sample all that is trained together with one guidance_scale"
            )
        (self.scale,) = scales
        prompts = [rollout.prompts[i] for i in row.tolist()]
        self.conditioning = library.rows(prompts, taken.x.device, guided=self.scale > 1)

    def velocity(self, field: VelocityModel) -> Tensor:
        where = (self.taken.x, self.taken.sigma, self.conditioning)
        return field(*where, scale=self.scale)

    def answers(self, field: VelocityModel, *, recompute: bool) -> Answers:
        """name -> [N]"""

        def ask() -> tuple[Tensor, Tensor | None]:
            if "values" not in self.needs:
                return self.velocity(field), None
            where = (self.taken.x, self.taken.sigma, self.conditioning)
            velocity, states = field.with_states(*where, scale=self.scale)
            return velocity, self.model.values(states)

        ref_velocity = None
        if "kl_to_ref" in self.needs:
            with torch.no_grad(), self.model.reference() as reference:
                ref_velocity = self.velocity(reference)
        velocity, values = checkpoint(ask, use_reentrant=False) if recompute else ask()
        said = self.taken.answers(velocity, ref_velocity)
        return said | ({} if values is None else {"values": values})
