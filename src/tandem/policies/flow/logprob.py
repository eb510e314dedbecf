"""The training forward of a flow: what a field says of the random steps of a rollout."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tandem.policies.flow.embeddings import PromptEmbeddingCache
from tandem.policies.flow.model import FlowModel
from tandem.policies.flow.records import FlowSampling
from tandem.policies.flow.rows import picked, scattered
from tandem.policies.flow.sampling import even_parts, filled
from tandem.policies.flow.step_batch import Answers, StepBatch
from tandem.policies.flow.velocity_model import VelocityModel
from tandem.types import Evidence, Rollout, Transition

KLS = ("kl_to_old", "kl_to_ref")
TRANSITION = ("std", "sigma", "next_sigma", "velocity_gain")


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
        self.scale = one_of(rollout.sample.guidance[row].tolist())
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

        ref_velocity = self._of_reference() if "kl_to_ref" in self.needs else None
        velocity, values = checkpoint(ask, use_reentrant=False) if recompute else ask()
        said = self.taken.answers(velocity, ref_velocity)
        return said | ({} if values is None else {"values": values})

    @torch.no_grad()
    def _of_reference(self) -> Tensor:
        with self.model.reference() as field:
            return self.velocity(field)


def one_of(scales: Sequence[float]) -> float:
    if len(set(scales)) > 1:
        raise ValueError(
            f"rows of guidance scales {sorted(set(scales))} cannot share a forward pass; "
            "sample all that is trained together with one guidance_scale"
        )
    return scales[0]
