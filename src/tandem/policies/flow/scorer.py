"""The training forward of a flow: what a field says of the steps and pictures of a rollout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tandem.policies.flow.field import Field
from tandem.policies.flow.prompts import Library
from tandem.policies.flow.questions import Answers, Levels, Question, Regressed, Taken
from tandem.policies.flow.records import FlowSampling
from tandem.policies.flow.trajectories import even_parts
from tandem.types import Evidence, Rollout, Transition

Reference = Callable[[], AbstractContextManager[Field]]
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
        self.library, self.sampling = library, sampling
        self.levels, self.levels_per_picture = levels, levels_per_picture
        self.max_rows = max_rows

    def evidence(
        self, field: Field, rollout: Rollout, needs: frozenset[str], reference: Reference
    ) -> Evidence:
        said = self.answers(field, rollout, needs, reference)
        asked = needs & {"transition", *KLS}
        if not asked or rollout.sample.trajectory is None:
            return Evidence(logp=said["logp"])
        assert asked <= {"transition", *said}, "complete() was not told that old means are needed"
        facts = {name: said[name].detach() for name in TRANSITION}
        kls = {name: said[name] for name in KLS if name in needs}
        return Evidence(logp=said["logp"], transition=Transition(**facts, **kls))

    def answers(
        self,
        field: Field,
        rollout: Rollout,
        needs: frozenset[str] = frozenset(),
        reference: Reference | None = None,
    ) -> Answers:
        """name -> [B, T], 0 outside the mask.

        Parts are recomputed one by one in backward, so that the memory is that of one of them.
        """
        row, step = rollout.mask.nonzero(as_tuple=True)
        if not len(row):  # one that counts for nothing: ranks wait for gradients of all weights
            row = step = torch.zeros(1, dtype=torch.int64, device=rollout.mask.device)
        parts = even_parts(len(row), self._budget(rollout))
        said = [
            self._part(field, rollout, (row[part], step[part]), needs, reference, len(parts) > 1)
            for part in parts
        ]
        flat = {name: torch.cat([answers[name] for answers in said]) for name in said[0]}
        return {name: scattered(x, row, step, rollout.mask) for name, x in flat.items()}

    def means(self, field: Field, rollout: Rollout) -> Tensor:
        """Where the steps would have gone on average: [B, T, ...] float32, without gradient."""
        row, step = rollout.mask.nonzero(as_tuple=True)
        path = rollout.sample.trajectory.path
        means = path.new_zeros(*rollout.mask.shape, *path.shape[2:], dtype=torch.float32)
        for part in even_parts(len(row), self._budget(rollout)):
            at = (row[part], step[part])
            taken = self._taken(rollout, *at)
            means[at] = taken.step(self._ask(field, taken, rollout, at[0])).mean
        return means

    def _part(
        self,
        field: Field,
        rollout: Rollout,
        at: tuple[Tensor, Tensor],
        needs: frozenset[str],
        reference: Reference | None,
        recompute: bool,
    ) -> Answers:
        question = self._question(rollout, *at)
        ref_velocity = None
        if "kl_to_ref" in needs:
            with torch.no_grad(), reference() as frozen:
                ref_velocity = self._ask(frozen, question, rollout, at[0])

        def ask() -> Tensor:
            return self._ask(field, question, rollout, at[0])

        recompute = recompute and torch.is_grad_enabled()
        velocity = checkpoint(ask, use_reentrant=False) if recompute else ask()
        said = question.answers(velocity, ref_velocity)
        return {name: x.view(len(at[0]), -1).mean(1) for name, x in said.items()}

    def _ask(self, field: Field, question: Question, rollout: Rollout, row: Tensor) -> Tensor:
        """The velocity at every point of a question about these rows."""
        scale = one_of(rollout.sample.guidance[row].tolist())
        rows = row.repeat_interleave(len(question.x) // len(row)).tolist()
        conditioning = self.library.rows(
            [rollout.prompts[i] for i in rows], question.x.device, guided=scale > 1
        )
        return field(question.x, question.sigma, conditioning, scale=scale)

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


def one_of(scales: Sequence[float]) -> float:
    if len(set(scales)) > 1:
        raise ValueError(
            f"rows of guidance scales {sorted(set(scales))} cannot share a forward pass; "
            "sample all that is trained together with one guidance_scale"
        )
    return scales[0]


def scattered(values: Tensor, row: Tensor, step: Tensor, mask: Tensor) -> Tensor:
    """[N] -> [B, T], 0 outside the mask."""
    spread = values.new_zeros(mask.shape).index_put((row, step), values)
    return torch.where(mask, spread, 0)
