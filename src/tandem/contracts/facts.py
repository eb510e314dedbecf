"""Facts of a component: what it declares in addition to its signature, in one frozen record.

The record is an attribute of the function or class and is found through any number of
`functools.partial`s, so built-in and user components are treated alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from tandem.contracts.admitted import Domain, refuse_other_kinds, refuse_unknown, refuse_unlisted

if TYPE_CHECKING:
    from tandem.contracts.bounds import Bound

Unit = Literal["clip", "ratio", "sequence", "preference", "none"]
ERRORS_ALONE = {
    "tokens": "it compares velocities, but tokens have none; set model=tiny_flow, or another flow",
    "steps": "it reads velocity errors at fresh noise, not the steps that were sampled; set "
    "algorithm.objective=denoising",
}
MATCHED_ALONE = {
    "tokens": "it compares predicted pictures; set model=tiny_flow, or another flow",
    "steps": "it reads predictions along an ODE path, not log-probabilities of steps; set "
    "algorithm.objective=matching",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The declaration of a component. Defaults hold for components that declare nothing."""

    # Of any component.
    option: str | None = None  # the name that chooses it in its group
    # Fields beyond those that are always there; of rewards: "answer" and "images" of a prompt,
    # without which they give None.
    reads: Iterable[str] = frozenset()
    takes: Sequence[str] = ()  # its positional arguments; none: those of its kind
    gives: Iterable[str] = frozenset()  # beyond what its kind always gives: "pairs", "baseline"
    # Domain -> why it does not apply there, ending with what to set instead. A policy is trained on
    # "tokens"; on "steps", which are Gaussian; on "pictures", whose log-probability is a regression
    # error at fresh noise; or on "bounds" on log p of masked texts. A function that is refused for
    # tokens is refused for bounds.
    refused: Mapping[Domain, str] = field(default_factory=dict)
    # Number -> its unit, which its default is multiplied by: "clip" is the log-ratio of one step
    # (dynamics.clip_scale), "ratio" 1 plus as much, "sequence" that of a whole sample, "preference"
    # a temperature per nat of a sample; "none" is a number that means the same everywhere.
    units: Mapping[str, Unit] = field(default_factory=dict)
    rising: Sequence[tuple[str, str]] = ()  # pairs of numbers: the first must be below the second
    not_above: Sequence[tuple[str, str]] = ()  # the same; the two may be equal
    # Number -> the number and its value that it needs to have an effect.
    read_with: Mapping[str, tuple[str, object]] = field(default_factory=dict)
    metrics: Callable | None = None  # (record, *, numbers of the component) -> {name: Metric}
    neutral: bool = False  # it changes nothing
    # An algorithm that chooses it does not support models without this part.
    essential: bool = False
    # Of losses and advantages: a teacher defines what is learnt, not scores.
    taught: bool = False

    # Of losses and penalties.
    zero_at_zero_advantage: bool = False  # value and gradient of a row whose advantages are all 0
    whole_groups: bool = False  # it compares the rows of a group, which must stay together
    on_errors: bool = False  # it takes a `DecoupledBatch`: velocity errors, no log-probabilities
    matches: bool = False  # it takes a `MatchingBatch`: predictions of several networks
    networks: Iterable[str] = frozenset()  # those of algorithm.networks whose predictions it reads
    of_bounds: bool = False  # applies to bounds on log p, even if refused for tokens
    averages: bool = False  # over the update itself, which must stay whole
    # In a chain: the segments for which the component has a part each, and whether a segment where
    # it is refused goes without it.
    segments: Sequence[str] = ()
    where_it_can: bool = False
    # The unit of a value: a step; a sample, whose steps share one ratio; or a row with one
    # log-probability.
    per: Literal["step", "sample", "row"] = "step"
    clips: float | None = None  # its clip_low and clip_high per unit of the clip ratio of PPO
    on_fresh_samples: bool = False  # it is the policy gradient only on fresh samples
    reads_density: bool = False  # it reads the log-probability of a step as a log-density
    reward: Callable | None = None  # of pairs: (batch, *, numbers) -> [B, 1], see losses/pairs.py
    # batch_statistics(batch, *, numbers) -> [B, T] sees all rows of an update, without gradient and
    # before any cut; the loss is then called as loss(batch, statistics, *, numbers). `summary(
    # batch, *, numbers)` -> [B, T] describes each row, and statistics read it as a `Summary`.
    batch_statistics: Callable | None = None
    summary: Callable | None = None

    # Of advantages and returns.
    in_time: bool = False  # the columns of a row are one step after the other
    # Or of sampling strategies and re-prompts: what a score is compared with. "group": the others
    # of its group, two or more; "batch": samples of all groups, also of earlier iterations.
    compares: Literal["group", "batch"] | None = None
    # Weights of a likelihood, which is trained on samples of any age, and not a policy gradient.
    of_likelihood: bool = False
    rewards: Bound | None = None  # the range of rewards that it supports; None: any
    named_rewards: Sequence[str] = ()  # the numbers that name one or several rewards
    by_reward: bool = False  # it compares each reward separately, with its own weights
    set_size: str | None = None  # the number that is the size of a set of samples
    whole_group_is_no_set: bool = False

    # Of divergences from a teacher: whose likeliest tokens represent the distribution.
    support: Literal["student", "teacher"] = "student"
    # Of weights of steps.
    adds_to_one: bool = False  # over the update
    # Of weights and of truncation handling: the number that is the largest number of steps.
    horizon: str | None = None
    # Of old policies: the source of their log-probabilities.
    old_policy: Literal["recompute", "rollout", "interpolate", "current"] | None = None
    # Of likelihoods of masked texts: it replays the steps of the sampler, one by one.
    replays: bool = False
    # Of likelihoods of masked texts: a bound on log p of the whole answer, split over its
    # positions, of which none has a log-probability of its own.
    splits_bound: bool = False
    # Of truncation handling and KL: it lowers scores before they are compared.
    lowers_scores: bool = False
    # Of rewards and data: the kind of samples that they score or ask for; None: either.
    judges: Literal["texts", "pictures"] | None = None
    # Of rewards.
    of_films: bool = False  # they score whole films; other rewards of pictures score frames
    batched: bool = False  # they take lists
    waits: int = 0  # number of concurrent remote calls; 0: they compute
    asks: object | None = None  # the samples of a call, a `Signature`; None: one sample
    # Required and optional placeholders in the template of a judge.
    places: tuple[Sequence[str], Sequence[str]] | None = None
    # Of data without pairs: similar data with pairs. `prompts_alone`: there are no demonstrations.
    pairs_in: str | None = None
    prompts_alone: bool = False
    mixes: bool = False  # datasets of its own under `of`
    downloads: bool = False  # from a hub, so a dry run does not read it
    test_from: str | None = None  # how to give it test prompts: "set data.test_path to a file"
    # Of rewards: the sum of the rewards of moves, each at its move.
    of_moves: bool = False
    # Of parts of rewards and engines: built before the run to check its numbers, without remote
    # calls.
    judges_itself: bool = False
    of_sde: bool = False  # of kernels and KLs: steps of an SDE, with a duration
    # Of log-probabilities of steps: not a log-density. Factor of clip numbers in one latent
    # dimension: over D it is divided by sqrt(D), like a ratio of means; None: it must be set.
    unscaled: bool = False
    clip_scale: float | None = None
    # Of flow families: the dimensions of one latent picture; None: they must be set. Whether they
    # make films.
    latent_size: int | None = None
    makes_films: bool = False
    shows: Sequence[int] = range(
        1
    )  # numbers of pictures that a prompt may have; the first is the default
    # Of kernels: they add no noise. Of distillation targets: they require steps without noise. Of
    # likelihoods of masked texts: they draw no states.
    noiseless: bool = False

    def __post_init__(self) -> None:
        refuse_other_kinds(self)
        refuse_unlisted(self)
        sets = {"reads": self.reads, "gives": self.gives, "networks": self.networks}
        for name, given in sets.items():
            if isinstance(given, str):
                raise ValueError(f"{name}={given!r}: give a set of names, {{{given!r}}}")
            object.__setattr__(self, name, frozenset(given))
        if self.clips is not None and self.units.get("clip_low") not in ("clip", "sequence"):
            raise ValueError('clips: declare units={"clip_low": "clip"} or "sequence" as well')
        if self.averages:  # over all rows, so no row may be skipped
            object.__setattr__(self, "zero_at_zero_advantage", False)
        if self.on_errors:
            object.__setattr__(self, "refused", {**ERRORS_ALONE, **self.refused})
        if self.matches:
            object.__setattr__(self, "refused", {**MATCHED_ALONE, **self.refused})

    @property
    def compares_groups(self) -> bool:
        """Whether it reads other rows of a group."""
        return self.whole_groups or self.batch_statistics is not None

    def with_declared(self, declared: Mapping[str, Any]) -> Facts:
        """These facts updated by `declared`; what is read, refused and has units is merged."""
        for name in declared:
            refuse_unknown("fact of a component", name, [one.name for one in fields(Facts)])
        more = Facts(**declared)
        both = {
            "reads": self.reads | more.reads,
            "networks": self.networks | more.networks,
            "refused": {**self.refused, **more.refused},
            "units": {**self.units, **more.units},
        }
        return replace(self, **{**declared, **both})


NOTHING = Facts()
