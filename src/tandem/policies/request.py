"""The trainer's request to a policy: what it samples by, and what will be read of its samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tandem.dynamics.decays import EmaSchedule
from tandem.dynamics.matching import Query
from tandem.dynamics.regression import Regression, logit_normal
from tandem.dynamics.weighting import plain
from tandem.policies.weights import FULL, Precision

if TYPE_CHECKING:
    from tandem.environments import Environment, Mixture
    from tandem.policies.chain.records import ChainSampling
    from tandem.policies.flow.records import FlowSampling
    from tandem.policies.language.records import Sampling
    from tandem.policies.teachers import Teachers

BY_ITSELF = Regression(levels=logit_normal, weighting=plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedCopy:
    """A copy of the policy that learns beside it."""

    guided: bool = False  # the picture that it expects is asked as the reference is
    snapshots: Mapping[str, EmaSchedule] = field(default_factory=dict)  # older weights of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The one argument of `load`. A policy of tokens reads `sampling` and `needs` alone."""

    sampling: Sampling | FlowSampling | ChainSampling  # what is trained is sampled by it
    needs: frozenset[str] = frozenset()  # fields that the algorithm reads
    objective: Literal["policy_gradient", "denoising", "any", "distillation", "matching"] = (
        "any"  # algorithm.objective
    )
    timesteps: Regression = (
        BY_ITSELF  # algorithm.timestep_sampling: the noise levels of whole pictures
    )
    likelihood: Callable | None = None  # algorithm.likelihood of masked texts; None: their path
    epochs: int = 1  # passes over the rows of an iteration
    seed: int = 0  # of the run: of new adapters and critics, and of which steps are random
    snapshots: Mapping[str, EmaSchedule] = field(default_factory=dict)  # older weights, by name
    teachers: Teachers | None = None
    query: Query | None = None  # algorithm.query: where expected pictures are noised again
    every_state: bool = False  # of a path, in place of one that the row's key draws
    networks: Mapping[str, LearnedCopy] = field(default_factory=dict)  # by name
    precision: Precision = FULL  # of forward passes
    offload: frozenset[str] = frozenset()  # what lies in host memory while nobody asks for it
    environment: Environment | Mixture | None = (
        None  # that answers between moves; None: there is one move
    )
    # Of samples of several segments: what is read of other segments alone, by name, and those that
    # nobody trains.
    unread: Mapping[str, frozenset[str]] = field(default_factory=dict)
    frozen: Sequence[str] = ()

    # Whether pictures are trained as a whole, at fresh noise, whatever path led to them.
    whole: bool = field(init=False)
    # Of a rollout, where pictures as a whole are trained: noise levels, or their mean.
    steps_of_a_picture: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "whole", self.objective == "denoising")
        object.__setattr__(self, "steps_of_a_picture", self.timesteps.count if self.whole else 1)
