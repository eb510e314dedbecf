"""Advantages composed of others, which `of` names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from tandem.advantages.group import TIE, divide
from tandem.advantages.temporal import scored_steps, whiten
from tandem.contracts import Facts, Switch, Wrapper, at_least, facts_of, register_adv_estimator
from tandem.types import Rollout, Scores

Estimator = Callable[[Scores, Rollout], Tensor]


def normalise(advantages: Tensor, scores: Scores, rollout: Rollout) -> Tensor:
    """To mean 0 and variance 1 over the trained steps of all scored samples. [B, T] -> [B, T]

    A group that ties gets minus the mean of all, as published, so 0 only if that mean is 0.
    """
    return whiten(advantages, scored_steps(scores, rollout))


@register_adv_estimator("standardised")
@dataclass(frozen=True)
class Standardised(Wrapper):
    """(A - mean) / (std + eps), with statistics over the samples' mean advantages; 0 in a tie.

    TRL's `normalize_advantages`, for estimators with one advantage per sample.
    Source: TRL's normalize_advantages.
    """

    of: Estimator  # the advantage that is standardised
    eps: Annotated[float, at_least(0)] = 1e-4  # added to the standard deviation

    def own_facts(self, declared: Facts) -> Facts:
        inner = facts_of(self.of)
        own = {"option": declared.option, "gives": declared.gives}
        return replace(inner, **own, compares=inner.compares or "batch")

    def __call__(self, scores: Scores, rollout: Rollout) -> Tensor:
        advantages = torch.where(rollout.trained, self.of(scores, rollout), 0)
        steps = rollout.trained.sum(1)
        known = scores.scored & (steps > 0)
        of_sample = torch.where(known, advantages.double().sum(1) / steps.clamp(min=1), 0)
        count = known.sum()
        mean = of_sample.sum() / count.clamp(min=1)
        apart = torch.where(known, of_sample - mean, 0)
        std = (apart.square().sum() / (count - 1).clamp(min=1)).sqrt()
        inside = scored_steps(scores, rollout) & (std >= TIE)
        centred = torch.where(inside, advantages - mean, 0)
        return divide(centred, std + self.eps).to(advantages.dtype)


@dataclass(frozen=True)
class Share(Switch):
    """One term of a sum of advantages."""

    of: Estimator  # the advantage of this term
    coef: float = 1.0  # factor of this term in the sum; 0 disables it


@register_adv_estimator("combined")
@dataclass(frozen=True)
class Combined(Wrapper):
    """sum of coef * A over named shares; a coefficient of 0 disables a share and its needs.

    Tandem's own.
    """

    shares: Mapping[str, Share]  # the terms of the sum, by name

    def own_facts(self, declared: Facts) -> Facts:
        """The union of the fields they read; other facts belong to each share."""
        reads = (facts_of(share.of).reads for share in self._live())
        return replace(declared, reads=frozenset().union(*reads))

    def components(self) -> dict[str, Estimator]:
        live = {name: share for name, share in self.shares.items() if not share.is_off}
        return {f"shares.{name}.of": share.of for name, share in (live or self.shares).items()}

    def __call__(self, scores: Scores, rollout: Rollout) -> Tensor:
        zero = torch.zeros_like(rollout.mask, dtype=scores.total.dtype)
        return sum((share.coef * share.of(scores, rollout) for share in self._live()), zero)

    def _live(self) -> list[Share]:
        return [share for share in self.shares.values() if not share.is_off]
