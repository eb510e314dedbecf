"""The case that rules examine: an algorithm without weights, and the parts around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Protocol

from tandem.algorithm.algorithm import ON_ERRORS, Algorithm
from tandem.contracts import DOMAINS, Facts, facts_of, iterate_innermost, name_of, numbers_of
from tandem.environments import Environment, Mixture
from tandem.settings.settings import Settings
from tandem.training.batches import GIVEN
from tandem.types import PICTURE, SEGMENTS, TEXT

TOKENS, STEPS, PICTURES, BOUNDS = DOMAINS


class Part(Protocol):
    """A component that is expensive to build, described by its call."""

    target: Callable
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The facts and numbers of parts. Rules never test the name of a function."""

    plan: Settings
    algorithm: Algorithm
    sampling: object  # what `rollout` builds
    rollout: Part
    model: Part
    data: Part
    rewards: Mapping[str, Part]
    optimizer: Part
    schedule: Part
    environment: Environment | Mixture | None = None  # None: one move ends an episode
    # group -> the option chosen in it, for groups that the model has no part for.
    left_out: Mapping[str, Callable] = field(default_factory=dict)

    @property
    def losses(self) -> dict[str, Callable]:
        """The innermost losses by key, without the wrappers that mask their samples: one, or one
        per segment of a chain."""
        return dict(iterate_innermost(self.algorithm.loss, "algorithm.loss"))

    @property
    def loss(self) -> Callable:
        """The innermost loss, the first one if there are two."""
        return next(iter(self.losses.values()))

    def loss_that(self, fits: Callable[[Facts], bool]) -> Callable | None:
        """The first innermost loss whose facts fit; None: there is none."""
        return next((loss for loss in self.losses.values() if fits(facts_of(loss))), None)

    @property
    def loss_facts(self) -> Facts:
        return facts_of(self.loss)

    @property
    def estimators(self) -> dict[str, Callable]:
        """The innermost advantages by key, without the wrappers that normalise or add them."""
        return dict(iterate_innermost(self.algorithm.advantage, "algorithm.advantage"))

    @property
    def parts(self) -> dict[str, Any]:
        """The parts of the algorithm by their groups, and its numbers."""
        return numbers_of(self.algorithm)

    @property
    def strategy(self) -> Facts:
        return facts_of(self.algorithm.sampling_strategy)

    @property
    def is_offline(self) -> bool:
        """Whether some or all of the training rows come from data."""
        return bool(self.strategy.reads & GIVEN)

    @property
    def samples(self) -> bool:
        """Whether some or all of the training rows are sampled."""
        return not self.is_offline or "samples" in self.strategy.gives

    @property
    def evaluates(self) -> bool:
        """Whether samples are evaluated, during training or alone."""
        return self.plan.evaluate or self.plan.evaluation.every is not None

    @property
    def learns_from_scores(self) -> bool:
        """Whether rewards define what is learnt, not just rows of data or a teacher."""
        return self.algorithm.learns_from_scores and self.samples

    @property
    def old_policy(self) -> str | None:
        return facts_of(self.algorithm.old_logprobs).old_policy

    @property
    def corrects(self) -> bool:
        return not facts_of(self.algorithm.importance_sampling).neutral

    @property
    def preference_loss(self) -> Callable | None:
        return self.loss_that(lambda facts: facts.reward is not None)

    @property
    def is_chain(self) -> bool:
        """Whether a sample is a text followed by a picture."""
        return {*SEGMENTS} <= self.rollout.arguments.keys()

    @property
    def samplers(self) -> dict[str, Part]:
        """The sampler of each segment by its key; a single one where there are no segments."""
        if not self.is_chain:
            return {"rollout": self.rollout}
        return {f"rollout.{name}": self.rollout.arguments[name] for name in SEGMENTS}

    @property
    def painter(self) -> tuple[Part, Part]:
        """The sampler and the model of pictures, in a chain or alone."""
        if not self.is_chain:
            return self.rollout, self.model
        return self.rollout.arguments[PICTURE], self.model.arguments[PICTURE]

    @property
    def engine(self) -> Part | None:
        """The inference engine that samples; None: the model samples itself."""
        return self.rollout.arguments.get("engine")

    @property
    def updates(self) -> int:
        return self.plan.num_minibatches * self.plan.epochs

    @property
    def is_of_texts(self) -> bool:
        return self.plan.dynamics.kernel is None

    @property
    def domain(self) -> str:
        """The domain of the log-probabilities: one of DOMAINS."""
        wanted = self.algorithm.objective
        if self.is_of_texts:
            own = self.algorithm.likelihood
            return TOKENS if own is None or facts_of(own).replays else BOUNDS
        noiseless = facts_of(self.plan.dynamics.kernel).noiseless
        whole = wanted in ON_ERRORS or (wanted == "any" and noiseless)
        return PICTURES if whole or self.is_offline else STEPS

    @property
    def makes_films(self) -> bool:
        adapter = None if self.is_of_texts else self.painter[1].arguments.get("adapter")
        return adapter is not None and facts_of(adapter.target).makes_films

    @property
    def domains(self) -> dict[str | None, str]:
        """The domain of each segment by its name; None: steps of one kind."""
        return {TEXT: TOKENS, PICTURE: self.domain} if self.is_chain else {None: self.domain}

    @property
    def shaping(self) -> str | None:
        """The option that lowers scores before they are compared."""
        if facts_of(self.algorithm.truncation_handling).lowers_scores:
            return self.option("truncation_handling")
        if facts_of(self.algorithm.kl).lowers_scores and self.algorithm.kl.coef:
            return self.option("kl")
        return None

    def option(self, group: str) -> str:
        """The option as a user would write it."""
        return f"algorithm/{group}={name_of(self.parts[group])}"


def unknown(what: str, name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown name, with the closest known one."""
    names = list(names)
    if meant := get_close_matches(name, names, n=1):
        return f"unknown {what} {name!r}: did you mean {meant[0]!r}?"
    return f"unknown {what} {name!r}: there are {', '.join(names) or 'none'}"
