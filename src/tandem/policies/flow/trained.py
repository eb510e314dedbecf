"""What an algorithm trains of a picture, as its part of the configuration says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tandem.dynamics.decays import Following
from tandem.dynamics.regression import Regression, logit_normal, plain
from tandem.policies.flow.teachers import Teachers
from tandem.types import OF_SNAPSHOTS

BY_ITSELF = Regression(levels=logit_normal, weighting=plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Which of its steps, at which noise levels, and beside which other weights."""

    regression: Regression = BY_ITSELF
    evidence: Literal["path", "elbo", "any", "teacher"] = "any"
    snapshots: Mapping[str, Following] = field(default_factory=dict)
    teachers: Teachers | None = None

    @property
    def whole(self) -> bool:
        """Whether it is pictures as a whole, at fresh noise, whatever path led to them."""
        return self.evidence == "elbo"

    @property
    def steps_of_a_picture(self) -> int:
        """Of a rollout, where pictures as a whole are trained: noise levels, or their mean."""
        return self.regression.count if self.whole else 1

    def kept_steps(self, steps: int) -> Sequence[int] | None:
        """The denoising steps that are trained; None: those that were random."""
        if self.whole:
            return ()
        return None if self.teachers is None else self.teachers.kept(steps)

    def followed(self, needs: frozenset[str], sampled_by: str) -> dict[str, Following]:
        """The snapshots that a loss reads, or that samples are drawn from."""
        read = {OF_SNAPSHOTS[name] for name in needs & OF_SNAPSHOTS.keys()} | {sampled_by}
        return {name: x for name, x in self.snapshots.items() if name in read}
