"""The training forward of a flow: what a field says of the steps and pictures of a rollout."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tandem.policies.flow.field import Field
from tandem.policies.flow.model import FlowModel
from tandem.policies.flow.prompts import Library
from tandem.policies.flow.questions import Answers, Levels, Question, Regressed, Taken
from tandem.policies.flow.records import FlowSampling
from tandem.policies.flow.trajectories import even_parts
from tandem.types import Evidence, Rollout, Transition

KLS = ("kl_to_old", "kl_to_ref")
TRANSITION = ("std", "sigma", "next_sigma", "velocity_gain")


class Scorer:
    """Steps x pictures are flattened into rows of the network."""

    def __init__(
        self,
        library: Library,
        sampling: FlowSampling,
        *,
        levels: Levels,
        levels_per_picture: int,
        max_rows: int,
    ) -> None:
        for name, count in {
            "levels_per_picture": levels_per_picture,
            "row_budget": max_rows,
        }.items():
            if count < 1:
                raise ValueError(f"model.{name} is {count}; it must be at least 1")
        self.library, self.sampling = library, sampling
        self.levels, self.levels_per_picture = levels, levels_per_picture
        self.max_rows = max_rows

    def evidence(self, model: FlowModel, rollout: Rollout, needs: frozenset[str]) -> Evidence:
        said = self.answers(model.field, rollout, needs, model)
        plain = {"logp": said["logp"], "values": said.get("values")}
        asked = needs & {"transition", *KLS}
        if not asked or rollout.sample.trajectory is None:
            return Evidence(**plain)
        assert asked <= {"transition", *said}, "complete() was not told that old means are needed"
        facts = {name: said[name].detach() for name in TRANSITION}
        kls = {name: said[name] for name in KLS if name in needs}
        return Evidence(**plain, transition=Transition(**facts, **kls))

    def answers(
        self,
        field: Field,
        rollout: Rollout,
        needs: frozenset[str] = frozenset(),
        model: FlowModel | None = None,
    ) -> Answers:
        """name -> [B, T], 0 outside the mask. `model`: of the reference and the critic.

        Parts are recomputed one by one in backward, so that the memory is that of one of them.
        """
        row, step = steps_of(rollout)
        parts = even_parts(len(row), self._budget(rollout))
        recompute = len(parts) > 1 and torch.is_grad_enabled()
        said = []
        for part in parts:
            question = self._question(rollout, row[part], step[part])
            asking = Asking(self.library, rollout, row[part], question, needs, model)
            said.append(asking.answers(field, recompute=recompute))
        flat = {name: torch.cat([answers[name] for answers in said]) for name in said[0]}
        return {name: scattered(x, row, step, rollout.mask) for name, x in flat.items()}

    @torch.no_grad()
    def logp(self, field: Field, rollout: Rollout) -> Tensor:
        """[B, T], without gradient."""
        return self.answers(field, rollout)["logp"]

    @torch.no_grad()
    def steps_again(self, field: Field, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Of one pass without gradient: how likely the steps are, [B, T], and where they would
        have gone on average, [B, T, ...] float32."""
        row, step = steps_of(rollout)
        path = rollout.sample.trajectory.path
        means = path.new_zeros(*rollout.mask.shape, *path.shape[2:], dtype=torch.float32)
        logp = []
        for part in even_parts(len(row), self._budget(rollout)):
            at = (row[part], step[part])
            taken = self._taken(rollout, *at)
            asking = Asking(self.library, rollout, at[0], taken, frozenset(), None)
            again = taken.step(asking.velocity(field))
            logp.append(self.sampling.logp(taken.next_x, again))
            means[at] = again.mean
        return scattered(torch.cat(logp), row, step, rollout.mask), means

    def _question(self, rollout: Rollout, row: Tensor, step: Tensor) -> Question:
        if rollout.sample.trajectory is not None:
            return self._taken(rollout, row, step)
        return Regressed.of(rollout.sample, row, count=self.levels_per_picture, levels=self.levels)

    def _taken(self, rollout: Rollout, row: Tensor, step: Tensor) -> Taken:
        kernel, logp = self.sampling.kernel, self.sampling.logp
        return Taken.of(rollout.sample, row, step, kernel=kernel, logp=logp)

    def points_per_step(self, rollout: Rollout) -> int:
        """Where a field is read for one step: a picture may be regressed on at several levels."""
        return self.levels_per_picture if rollout.sample.trajectory is None else 1

    def _budget(self, rollout: Rollout) -> int:
        """Steps of one part."""
        return max(1, self.max_rows // self.points_per_step(rollout))


class Asking:
    """One part: its question, and the prompts that go with its rows."""

    def __init__(
        self,
        library: Library,
        rollout: Rollout,
        row: Tensor,
        question: Question,
        needs: frozenset[str],
        model: FlowModel | None,
    ) -> None:
        self.rows, self.question, self.needs, self.model = len(row), question, needs, model
        self.scale = one_of(rollout.sample.guidance[row].tolist())
        points = row.repeat_interleave(len(question.x) // len(row)).tolist()
        self.conditioning = library.rows(
            [rollout.prompts[i] for i in points], question.x.device, guided=self.scale > 1
        )

    def velocity(self, field: Field) -> Tensor:
        where = (self.question.x, self.question.sigma, self.conditioning)
        return field(*where, scale=self.scale)

    def answers(self, field: Field, *, recompute: bool) -> Answers:
        """name -> [N], the mean over the points of each row."""

        def ask() -> tuple[Tensor, Tensor | None]:
            if "values" not in self.needs:
                return self.velocity(field), None
            where = (self.question.x, self.question.sigma, self.conditioning)
            velocity, states = field.with_states(*where, scale=self.scale)
            return velocity, self.model.critic(states)

        ref_velocity = self._of_reference() if "kl_to_ref" in self.needs else None
        velocity, values = checkpoint(ask, use_reentrant=False) if recompute else ask()
        said = self.question.answers(velocity, ref_velocity)
        said |= {} if values is None else {"values": values}
        return {name: x.view(self.rows, -1).mean(1) for name, x in said.items()}

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


def steps_of(rollout: Rollout) -> tuple[Tensor, Tensor]:
    """Rows and steps of the mask; where there is none, one that counts for nothing."""
    row, step = rollout.mask.nonzero(as_tuple=True)
    if not len(row):  # ranks wait for gradients of all weights
        row = step = torch.zeros(1, dtype=torch.int64, device=rollout.mask.device)
    return row, step


def scattered(values: Tensor, row: Tensor, step: Tensor, mask: Tensor) -> Tensor:
    """[N] -> [B, T], 0 outside the mask."""
    spread = values.new_zeros(mask.shape).index_put((row, step), values)
    return torch.where(mask, spread, 0)
