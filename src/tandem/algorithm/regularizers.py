"""Regularisers of the policy loss: a KL to the frozen reference, an entropy bonus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

import torch
from torch import Tensor

from tandem.advantages.temporal import step_rewards
from tandem.algorithm.controllers import (
    EntropyController,
    KLController,
    ReferenceRenewal,
    ScheduledCoefficient,
)
from tandem.algorithm.coupled import entropy_bonus
from tandem.algorithm.objective import Term, Weigh
from tandem.contracts import (
    Switch,
    at_least,
    callable_name,
    declare,
    facts_of,
    positive,
    register_kl,
)
from tandem.contracts.wrong_output import wrong_value
from tandem.losses.reduction import token_mean
from tandem.types import CoupledBatch, Rollout, Scores

Gate = Callable[[Scores, Rollout], Tensor]  # -> [B] bool


@dataclass(frozen=True, kw_only=True)
class KL(Switch):
    """The coefficient of a KL; with `kl_target` (nats per step) a controller adapts it, with
    `schedule` it is multiplied by a function of the iteration."""

    gate = renewal = renew_above = renew_every = None  # of a KL in the loss only

    coef: Annotated[float, at_least(0)]  # coefficient of the KL; 0: no KL, and no reference model
    # KL, nats per step, that a controller keeps by changing the coefficient; null: constant.
    kl_target: float | None = None
    # Samples in which the controller changes the coefficient by at most a fifth.
    horizon: Annotated[int, positive] = 10_000
    # Factor of the coefficient by iteration; null: 1.
    schedule: Callable[[int], float] | None = None

    def __post_init__(self) -> None:
        if self.kl_target is not None and not (self.coef > 0 and self.kl_target > 0):
            raise ValueError(
                f"algorithm.kl.kl_target={self.kl_target} adapts the coefficient from its start, "
                f"algorithm.kl.coef={self.coef}; set both above 0"
            )
        if self.schedule is not None and (self.kl_target is not None or self.coef == 0):
            wrong = "coef above 0" if self.coef == 0 else "kl_target=null"
            name = callable_name(self.schedule)
            raise ValueError(
                f"algorithm/kl/schedule={name} multiplies a given coefficient, not "
                f"coef={self.coef} with kl_target={self.kl_target}; set algorithm.kl.{wrong}"
            )

    @cached_property
    def coefficient(self) -> float | KLController | ScheduledCoefficient:
        if self.schedule is not None:
            return ScheduledCoefficient(start=self.coef, schedule=self.schedule)
        if self.kl_target is None:
            return self.coef
        return KLController(start=self.coef, kl_target=self.kl_target, horizon=self.horizon)


@dataclass(frozen=True, kw_only=True)
class KLInLoss(KL):
    """A KL to the reference as a term of the loss, recomputed in every update."""

    loss: Callable[[CoupledBatch], Tensor]  # distance of a step to the reference
    weights: Weigh | None = None  # weight of each step; null: that of the policy loss
    gate: Gate | None = None  # samples that the KL applies to; null: all
    # actor/ref_kl above which the reference is reset to the policy; null: never.
    renew_above: Annotated[float, positive] | None = None
    # Iterations between two resets; null: never.
    renew_every: Annotated[int, positive] | None = None
    reads_before = frozenset()  # before the first update

    @property
    def distance(self) -> Callable[..., Tensor]:
        """The distance of two policies, per step."""
        return self.loss

    @cached_property
    def renewal(self) -> ReferenceRenewal | None:
        if (self.renew_above is None and self.renew_every is None) or self.is_off:
            return None
        return ReferenceRenewal(kl_above=self.renew_above, every=self.renew_every)

    def open_for(self, scores: Scores, rollout: Rollout) -> Tensor:
        """The samples that the gate lets through, [B] bool. Raises WrongOutput for anything else,
        which would scale the weights or broadcast over them."""
        found, shape = self.gate(scores, rollout), rollout.group.shape
        if not isinstance(found, Tensor) or (found.dtype, found.shape) != (torch.bool, shape):
            want = f"a bool tensor [B], here {[*shape]}, True for the samples that keep their KL"
            raise wrong_value(self.gate, found, want)
        return found.to(rollout.group.device)

    def term_beside(self, weights: Weigh) -> Term:
        """The term added to a policy loss with these weights."""
        return Term(loss=self.loss, coef=self.coefficient, weights=self.weights or weights)


@register_kl(
    "in_reward",
    lowers_scores=True,
    refused={
        "bounds": "a KL in the reward is charged per step, and a bound on log p has no value per "
        "step; set algorithm.kl.coef=0",
        "pictures": "a KL in the reward is charged per step, and the policy's steps are not known "
        "here; set algorithm.kl.coef=0",
    },
)
@dataclass(frozen=True, kw_only=True)
class KLInReward(KL):
    """A penalty on the reward of every step, before the advantage: k1 = old_logp - ref_logp, in
    nats of a token or of a whole denoising step.

    A step is thus charged for all divergence after it, or for that of its whole sample where
    columns are not in time: masked diffusion, chains. The penalty is constant over the updates of
    an iteration. Source: InstructGPT, arXiv:2203.02155.
    """

    distance = None  # uses the log ratio of the sampled steps

    def term_beside(self, weights: Weigh) -> None:
        return None

    @property
    def reads_before(self) -> frozenset[str]:
        return frozenset({"old_kl_to_ref"} if self.coef else ())

    def charge(self, scores: Scores, rollout: Rollout, *, in_time: bool) -> Scores:
        """The scores minus the penalty of each step. `in_time`: columns are one step after the
        other; otherwise a step cannot tell what followed it, and all bear the whole penalty."""
        kl = torch.where(rollout.trained, rollout.old_kl_to_ref, 0)
        cost = float(self.coefficient) * kl * scores.scored[:, None]
        per_step = step_rewards(scores, rollout) - cost if in_time else None
        return replace(scores, total=scores.total - cost.sum(1), per_step=per_step)


@dataclass(frozen=True, kw_only=True)
class EmaKL(Switch):
    """The distance to a fast moving average of the weights: a trust region."""

    coef: Annotated[float, at_least(0)]  # coefficient of the distance; 0: off
    loss: Callable[..., Tensor]  # distance of a step to the average

    @property
    def distance(self) -> Callable[..., Tensor]:
        return self.loss

    @property
    def term(self) -> Term:
        return Term(loss=self.loss, coef=self.coef, weights=token_mean)


@declare(refused=facts_of(entropy_bonus).refused, where_it_can=True)
@dataclass(frozen=True, kw_only=True)
class EntropyBonus(Switch):
    """A bonus on the entropy of the full distribution; with `target` only below it (Skywork-OR1).

    The coefficient then starts at `coef` and changes by `step` per iteration, up to `most`.
    """

    coef: float  # coefficient of the bonus; with a target, the first one
    target: float | None = None  # entropy below which it applies, nats per step; null: always
    step: float = 0.005  # change of the coefficient per iteration, with a target
    most: float = 1.0  # largest coefficient, with a target

    def __post_init__(self) -> None:
        _ = self.coefficient  # refuses its numbers while composing

    @property
    def is_off(self) -> bool:
        return self.coef == 0 and self.target is None

    @cached_property
    def coefficient(self) -> float | EntropyController:
        if self.target is None:
            return self.coef
        return EntropyController(
            start=self.coef, target=self.target, step=self.step, most=self.most
        )

    @property
    def term(self) -> Term:
        return Term(
            loss=entropy_bonus,
            coef=self.coefficient,
            weights=token_mean,
            may_be_constant=True,
        )
