"""The trainer's request to a policy: sampling options, and the fields that samples need."""

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
    """A copy of the policy that is trained along with it."""

    guided: bool = False  # its expected image is guided as that of the reference
    snapshots: Mapping[str, EmaSchedule] = field(default_factory=dict)  # its own older weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The one argument of a policy's `load`."""

    sampling: Sampling | FlowSampling | ChainSampling  # options of training samples
    needs: frozenset[str] = frozenset()  # fields that the algorithm reads
    # algorithm.objective
    objective: Literal["policy_gradient", "denoising", "any", "distillation", "matching"] = "any"
    # algorithm.timestep_sampling: noise levels of finished images
    timesteps: Regression = BY_ITSELF
    likelihood: Callable | None = None  # algorithm.likelihood of masked texts; None: `path`
    epochs: int = 1  # passes over the rows of an iteration
    seed: int = 0  # of the run; seeds new adapters and critics, and the choice of random steps
    snapshots: Mapping[str, EmaSchedule] = field(default_factory=dict)  # older weights, by name
    teachers: Teachers | None = None
    query: Query | None = None  # algorithm.query: how expected images are noised again
    every_state: bool = False  # all states of a path, instead of one drawn by the row's key
    networks: Mapping[str, LearnedCopy] = field(default_factory=dict)  # by name
    precision: Precision = FULL  # of forward passes
    offload: frozenset[str] = frozenset()  # parts that are in host memory while unused
    awaits_weights: bool = False  # `shard` brings the first rank's; a policy may read its own
    # Answers between moves; None: there is a single move.
    environment: Environment | Mixture | None = None
    # For samples of several segments: by name, the fields that only other segments need; and the
    # segments that are not trained.
    unread: Mapping[str, frozenset[str]] = field(default_factory=dict)
    frozen: Sequence[str] = ()

    # Whether finished images are trained at fresh noise, independent of their sampling path.
    whole: bool = field(init=False)
    # Steps per image of a rollout if finished images are trained: noise levels, or their mean.
    steps_of_a_picture: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "whole", self.objective == "denoising")
        object.__setattr__(self, "steps_of_a_picture", self.timesteps.count if self.whole else 1)
