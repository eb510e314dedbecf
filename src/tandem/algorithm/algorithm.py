"""An algorithm: how scores are compared, which loss is used with which weights, a few numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from tandem import distributed
from tandem.advantages.compose import normalise
from tandem.algorithm.coupled import Coupled
from tandem.algorithm.critic import Critic
from tandem.algorithm.decoupled import Decoupled
from tandem.algorithm.matching import Matching, Network
from tandem.algorithm.objective import KL, POLICY, Objective, Term, Weigh
from tandem.algorithm.part_checks import warn_of_nameless_states
from tandem.algorithm.regularizers import EmaKL, EntropyBonus, KLInLoss, KLInReward
from tandem.algorithm.segments import Segmented, compare_texts
from tandem.contracts import at_least, facts_of, iterate_innermost, positive
from tandem.contracts.outputs import ADVANTAGE
from tandem.contracts.stateful import metrics_of_memory, modules_in
from tandem.dynamics.decays import EmaSchedule
from tandem.dynamics.matching import Query
from tandem.dynamics.regression import Regression
from tandem.experience import Experience
from tandem.losses import importance
from tandem.losses.segments import Segment
from tandem.metrics import advantage_metrics
from tandem.policies.chain.records import ChainSampling
from tandem.policies.flow.records import FlowSampling
from tandem.policies.language.records import Sampling
from tandem.policies.request import BY_ITSELF, Request
from tandem.policies.teachers import Teachers
from tandem.types import OF_SNAPSHOTS, PICTURE, CoupledBatch, Rollout, Scores

ON_ERRORS = ("denoising", "distillation", "matching")  # objectives of velocity errors
Compare = Callable[[Scores, Rollout], Tensor]  # -> [B, T]
Loss = Callable[..., Tensor]


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """The parts that one YAML of conf/algorithm binds. The loop does not depend on which it is."""

    # Input of the loss.
    # policy_gradient: log-probabilities of the sampled steps.
    # denoising: velocity errors of finished pictures at fresh noise.
    # any: log-probabilities, of sampled steps or of whole pictures.
    # distillation: velocity errors against a teacher at the states of the policy's own trajectory.
    # matching: predictions of the reference and other networks for the policy's pictures.
    objective: Literal["policy_gradient", "denoising", "any", "distillation", "matching"] = (
        "policy_gradient"
    )
    sampling_strategy: Callable[..., tuple[Rollout, Scores]]  # source of the rows of an iteration
    # Treatment of answers that a limit cut off.
    truncation_handling: Callable[[Scores, Rollout], tuple[Scores, Rollout]]
    advantage: Compare  # how much better a sample is than others
    normalize_advantages: bool  # true: advantages get mean 0 and variance 1 over all trained steps
    loss: Loss  # loss of each step
    weights: Weigh  # weight of each step in the mean of the loss
    importance_sampling: importance.Correction  # correction of rows sampled by other weights
    old_logprobs: Callable[[CoupledBatch], Tensor]  # log-probabilities that ratios compare with
    kl: KLInLoss | KLInReward  # KL to the frozen reference
    entropy: EntropyBonus  # bonus on the entropy of each step
    critic: Critic | None = None  # estimates the values of states, as PPO needs
    # KL to the old policy, nats per step; an iteration's updates end above 1.5 times it; null: off.
    target_kl: Annotated[float, positive] | None = None
    ema_kl: EmaKL | None = None  # distance to a fast average of the weights
    likelihood: Callable | None = None  # likelihood of masked texts, by states of an answer
    timestep_sampling: Regression | None = None  # noise levels at which whole images train a flow
    # Older weights and averages, by name.
    ema: Mapping[str, EmaSchedule] = field(default_factory=dict)
    rollout_weights: str = "live"  # live, or the name of the snapshot that samples
    rollout_weights_start: Annotated[int, at_least(0)] = 0  # updates before the snapshot samples
    # Segments of text-then-image samples by name; none: samples are of one kind.
    segments: Mapping[str, Segment] = field(default_factory=dict)
    teachers: Teachers | None = None  # teachers of a distillation
    query: Query | None = None  # noise levels at which predicted images are compared
    every_state: bool = False  # true: trains all states of a path; false: one, drawn by row
    # Networks trained beside the policy, by name; null: off.
    networks: Mapping[str, Network | None] = field(default_factory=dict)
    policy_every: Annotated[int, at_least(1)] = 1  # iterations per update of the policy

    # Whether it is trained on velocity errors or on likelihoods derived from them.
    reads_errors: bool = field(init=False)
    # Whether scores define what is learnt; otherwise a teacher does, and scores are logged.
    learns_from_scores: bool = field(init=False)
    unchecked: list[Compare] = field(init=False)  # the advantage, until its determinism was checked

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads_errors", self.objective in ON_ERRORS)
        estimators = [part for _, part in iterate_innermost(self.advantage, "")]
        taught = facts_of(self.loss).taught or all(facts_of(part).taught for part in estimators)
        object.__setattr__(self, "learns_from_scores", not taught)
        networks = {name: network for name, network in self.networks.items() if network is not None}
        object.__setattr__(self, "networks", networks)
        stateful = dict(modules_in("advantage", self.advantage))
        object.__setattr__(self, "unchecked", [] if stateful else [self.advantage])

    @cached_property
    def training_objective(self) -> Objective:
        policy = Term(
            loss=self.loss, coef=1.0, weights=self.weights, correction=self.importance_sampling
        )
        beside = {"ema_kl": self.ema_kl, "entropy": self.entropy, "value": self.critic}
        terms = {POLICY: policy, KL: self.kl.term_beside(self.weights)}
        terms |= {name: part.term for name, part in beside.items() if part is not None}
        terms = {name: term for name, term in terms.items() if term is not None}
        if self.objective == "matching":
            return Matching(terms | self.terms_beside)
        if self.reads_errors:
            return Decoupled(terms, self.timestep_sampling.weighting, old_policy=self.old_logprobs)
        if self.segments:
            return Segmented(terms, old_policy=self.old_logprobs, segments=self.segments)
        return Coupled(terms, old_policy=self.old_logprobs, likelihood=self.likelihood)

    @cached_property
    def shapes_scores(self) -> bool:  # whether truncation handling changes scores
        return not facts_of(self.truncation_handling).neutral

    @cached_property
    def resting_objective(self) -> Objective:
        """The objective of iterations that train only the critic, or networks beside the policy."""
        if self.networks:
            return Matching(self.terms_beside)
        return Coupled({"value": self.critic.term}, old_policy=self.old_logprobs)

    def rests(self, iteration: int) -> bool:
        """Whether only a critic or the networks beside the policy are trained."""
        warms_up = self.critic is not None and iteration < self.critic.warmup
        return warms_up or (iteration + 1) % self.policy_every != 0

    @property
    def terms_beside(self) -> dict[str, Term]:
        return {name: network.term(self.weights) for name, network in self.networks.items()}

    @property
    def rates(self) -> dict[str, float]:
        """Learning rates by the name of the part that has its own: segments, networks, critic."""
        learning = {name: part for name, part in self.segments.items() if not part.frozen}
        own = {name: part.lr for name, part in learning.items() if part.lr is not None}
        own |= {name: network.lr for name, network in self.networks.items()}
        return own | ({} if self.critic is None else {"critic": self.critic.lr})

    @cached_property
    def needs_before(self) -> frozenset[str]:
        """Rollout fields read before the first update."""
        parts = [self.sampling_strategy, self.truncation_handling, self.advantage, self.kl.gate]
        if self.critic is not None:
            parts.append(self.critic.returns)
        return self.kl.reads_before.union(*(facts_of(part).reads for part in parts))

    @cached_property
    def needs(self) -> frozenset[str]:
        renewed = frozenset() if self.kl.renewal is None else {"new_reference"}
        return self.training_objective.needs | self.needs_before | renewed

    def request(self, sampling: Sampling | FlowSampling | ChainSampling) -> Request:
        """The request to a policy with this sampling."""
        objective = self.training_objective
        return Request(
            sampling=sampling,
            needs=self.needs,
            objective=self.objective,
            timesteps=self.timestep_sampling or BY_ITSELF,
            likelihood=self.likelihood,
            snapshots=self.ema,
            teachers=self.teachers,
            query=self.query,
            every_state=self.every_state,
            networks={name: own.request(self.ema) for name, own in self.networks.items()},
            unread=objective.unread(self.needs_before) if self.segments else {},
            frozen=[name for name, own in self.segments.items() if own.frozen],
        )

    @property
    def corrects(self) -> bool:
        """Whether rows of older weights are corrected: the sampler's log-probabilities are read, or
        the sampler is the old policy whose velocity errors are read."""
        if self.reads_errors:
            name = OF_SNAPSHOTS["old_error"]
            sampler = self.rollout_weights == name and not self.rollout_weights_start
            return sampler and "old_error" in self.training_objective.needs
        parts = (self.loss, self.importance_sampling, self.old_logprobs)
        return any("behaviour_logp" in facts_of(part).reads for part in parts)

    def experience(self, scores: Scores, rollout: Rollout) -> Experience:
        """Rows ready for training: scores are shaped, then compared over the rows of all ranks."""
        if rollout.version_gap is None and "version_gap" in self.needs:  # all rows are fresh
            rollout = replace(rollout, version_gap=0 * rollout.mask.long())
        if self.shapes_scores:
            rollout = replace(rollout, sampled=rollout.mask)
            scores, rollout = self.truncation_handling(scores, rollout)
        if self.objective == "denoising":
            # Losses of errors train on an advantage of 0 too: pictures without a score are removed.
            rollout = replace(rollout, mask=rollout.mask & scores.scored[:, None])
        compared = rollout if rollout.sampled is None else replace(rollout, mask=rollout.sampled)
        if self.kl.reads_before:  # subtracted from the reward
            in_time = self.likelihood is None and not self.segments
            scores = self.kl.charge(scores, compared, in_time=in_time)
        of_all, rows = distributed.with_all_rows, (scores, compared)
        advantages = of_all(self.compare, *rows, rollout.mask)
        returns = None if self.critic is None else of_all(self.critic.expect, *rows)
        gates = {} if self.kl.gate is None else {KL: of_all(self.kl.open_for, *rows)}
        return Experience(
            rollout=rollout, scores=scores, advantages=advantages, returns=returns, gates=gates
        )

    def compare(self, scores: Scores, rollout: Rollout, trained: Tensor) -> Tensor:
        """Advantages of these rows, [B, T]; 0 outside `trained`, which is in the mask."""
        ask = partial(ADVANTAGE.ask, self.advantage)
        if rollout.text is not None:
            ask = partial(compare_texts, ask, within=self.segments[PICTURE].within)
        advantages = torch.where(trained, ask(scores, rollout, mask=rollout.mask), 0)
        if self.unchecked and advantages.any():
            again = torch.where(trained, ask(scores, rollout, mask=rollout.mask), 0)
            ADVANTAGE.refuse_unlike(self.advantage, advantages, again)
            warn_of_nameless_states(self.unchecked.pop(), rollout)
        own = replace(rollout, mask=trained)
        return normalise(advantages, scores, own) if self.normalize_advantages else advantages

    @cached_property
    def memory(self) -> Mapping[str, nn.Module]:
        """All stateful parts, by their names in a checkpoint."""
        found = {"kl": self.kl.coefficient, "entropy": self.entropy.coefficient}
        found["reference"] = self.kl.renewal
        found = {name: x for name, x in found.items() if isinstance(x, nn.Module)}
        return found | dict(modules_in("advantage", self.advantage))

    def observe(self, report: Mapping[str, float], samples: int) -> None:
        """Update the controllers after an iteration, with metrics over all ranks."""
        if "kl" in self.memory:
            self.memory["kl"].observe(report.get("actor/ref_kl", float("nan")), samples)
        if "entropy" in self.memory and "actor/entropy" in report:
            self.memory["entropy"].observe(report["actor/entropy"])

    def report(self, experience: Experience, known: Collection[str] = ()) -> dict[str, float]:
        """Metrics over all ranks: advantages, values, coefficients; none may be one of `known`."""
        trained = distributed.gather(experience.rollout.trained)
        metrics = advantage_metrics(distributed.gather(experience.advantages), trained)
        if self.critic is not None:
            metrics |= self.critic.report(experience, trained)
        own = metrics_of_memory(self.memory, {*known, *metrics}) if self.memory else {}
        return metrics | own
