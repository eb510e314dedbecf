"""Facts of a component: what it declares beside its signature, in one frozen record.

A record hangs on the function or class itself and travels with it through any number of
`functools.partial`s, so the loop and the configuration ask the part, whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from tandem.contracts.admitted import Domain, refuse_unknown, refuse_unlisted

if TYPE_CHECKING:
    from tandem.contracts.bounds import Bound

Unit = Literal["clip", "ratio", "sequence", "preference", "none"]
ERRORS_ALONE = {
    "tokens": "it compares velocities, and tokens have none; set model=tiny_flow, or another flow",
    "steps": "it reads velocity errors at fresh noise, not the steps that were sampled; set "
    "algorithm.objective=denoising",
}
MATCHED_ALONE = {
    "tokens": "it compares the pictures that networks expect; set model=tiny_flow, or another flow",
    "steps": "it reads what networks expect on the way of an ODE, not how likely steps are; set "
    "algorithm.objective=matching",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that is declared of a component. A default is what holds of one that says nothing."""

    # Of any component.
    option: str | None = None  # the name that chooses it in its group
    reads: Iterable[str] = frozenset()  # beyond the fields that are always there
    takes: Sequence[str] = ()  # what it is called with by place; none: as its kind is
    gives: Iterable[str] = frozenset()  # beyond what its kind always gives: "pairs", "baseline"
    # Domain -> a clause that says why it makes no sense there, and ends in what to set instead.
    # The domains are what a policy can be trained on: "tokens"; "steps", which are Gaussian; and
    # "pictures", whose log-probability is a regression error at fresh noise; and "bounds" on log p
    # of masked texts. What makes no sense of tokens makes none of bounds.
    refused: Mapping[Domain, str] = field(default_factory=dict)
    # Number -> its unit, which its default is multiplied by: "clip" is the log-ratio of one step
    # (dynamics.clip_scale), "ratio" 1 plus as much, "sequence" that of a whole sample, "preference"
    # a temperature per nat of a sample; "none" is a number that means the same everywhere.
    units: Mapping[str, Unit] = field(default_factory=dict)
    rising: Sequence[tuple[str, str]] = ()  # numbers of which the first must be below the second
    # Number -> another one and its value, without which it is not read.
    read_with: Mapping[str, tuple[str, object]] = field(default_factory=dict)
    metrics: Callable | None = None  # (record, *, numbers of the component) -> {name: Metric}
    neutral: bool = False  # it leaves all as it is
    # An algorithm that chooses it makes no sense of a model that leaves such a part out.
    essential: bool = False
    # Of losses and advantages: a teacher says what is learnt, and no score.
    taught: bool = False

    # Of losses, penalties too.
    zero_at_zero_advantage: bool = False  # value and gradient of a row whose advantages are all 0
    whole_groups: bool = False  # it compares the rows of a group, so no cut may part them
    on_errors: bool = False  # it takes a `DecoupledBatch`: velocity errors, no log-probabilities
    matches: bool = False  # it takes a `MatchingBatch`: pictures that several networks expect
    networks: Iterable[str] = frozenset()  # those of algorithm.networks whose pictures it reads
    of_bounds: bool = False  # of bounds on log p of whole answers, whatever is said of tokens
    averages: bool = False  # over the update itself, so no cut may part it
    # Of a sample of several segments, such as a text and a picture: the names of those for which
    # the component holds a part each, and whether a segment where it is refused goes without it.
    segments: Sequence[str] = ()
    where_it_can: bool = False
    # What has a value of its own: a step; a sample, whose steps share one ratio; a row, whose
    # log-probability counts as a whole.
    per: Literal["step", "sample", "row"] = "step"
    clips: float | None = None  # what 1 of PPO's clip ratio is in its clip_low and clip_high
    on_fresh_samples: bool = False  # it is the policy gradient there and nowhere else
    reads_density: bool = False  # it takes the log-probability of a step for a density
    reward: Callable | None = None  # of pairs: (batch, *, numbers) -> [B, 1], see losses/pairs.py
    # batch_statistics(batch, *, numbers) -> [B, T] sees all rows of an update, without gradient and
    # before any cut; the loss is then called as loss(batch, statistics, *, numbers). `summary(
    # batch, *, numbers)` -> [B, T] says something of each row, and they get it as a `Summary`.
    batch_statistics: Callable | None = None
    summary: Callable | None = None

    # Of advantages and returns.
    in_time: bool = False  # the columns of a row are one step after the other
    compares: Literal["group"] | None = None  # a sample alone in its group says nothing
    rewards: Bound | None = None  # the rewards that it makes sense of; None: any
    named_rewards: Sequence[str] = ()  # the numbers that name a reward, or several
    by_reward: bool = False  # each reward by itself, weighed by numbers of its own
    set_size: str | None = None  # the number that says how many samples of a group make a set
    whole_group_is_no_set: bool = False

    # Of divergences from a teacher: whose likeliest tokens stand for all of them.
    support: Literal["student", "teacher"] = "student"
    # Of weights of steps.
    adds_to_one: bool = False  # over the update
    # Of weights and of what shapes scores: the number that is the most steps of a sample.
    horizon: str | None = None
    # Of old policies: where the log-probabilities come from.
    old_policy: Literal["recompute", "rollout", "interpolate", "current"] | None = None
    # Of likelihoods of masked texts: it replays the steps of the sampler, one by one.
    replays: bool = False
    # Of what shapes scores before they are compared.
    lowers_scores: bool = False
    # Of rewards and data: what they judge and what they ask for; None: either.
    judges: Literal["texts", "pictures"] | None = None
    # Of rewards.
    of_films: bool = False  # they see films as a whole; others of pictures see frame by frame
    batched: bool = False  # they take lists
    waits: int = 0  # so many calls may wait for somebody else at a time; 0: they compute
    asks: object | None = None  # of whom at a time, a `Signature`; None: of a sample by itself
    # Which places the template of a judge must have, and which it may have.
    places: tuple[Sequence[str], Sequence[str]] | None = None
    # Of data: the like of it that has pairs, where it has none; prompts alone, nothing to imitate.
    pairs_in: str | None = None
    prompts_alone: bool = False
    mixes: bool = False  # datasets of its own under `of`
    downloads: bool = False  # from a hub, so a dry run leaves it unread
    # Of rewards: the number is the sum of what an environment gave, each part where it was given.
    of_moves: bool = False
    # Of parts of rewards and engines: made before the run, since it judges its own numbers and asks
    # nobody yet.
    judges_itself: bool = False
    # Of kernels and KLs: steps of an SDE have a duration. Of log-probabilities: of no density.
    of_sde: bool = False
    unscaled: bool = False
    # Of flow families: the dimensions of one latent picture; None: they are to be set. Whether what
    # they paint are films.
    latent_size: int | None = None
    makes_films: bool = False
    shows: Sequence[int] = range(1)  # how many pictures a prompt may show; the first by itself
    # Of kernels: they add no noise. Of targets of distillation: they are what a step comes to only
    # where it has none. Of likelihoods of masked texts: they draw no states of their own.
    noiseless: bool = False

    def __post_init__(self) -> None:
        refuse_unlisted(self)
        for name in ("reads", "gives", "networks"):
            if isinstance(given := getattr(self, name), str):
                raise ValueError(f"{name}={given!r}: give a set of names, {{{given!r}}}")
            object.__setattr__(self, name, frozenset(given))
        if self.clips is not None and self.units.get("clip_low") not in ("clip", "sequence"):
            raise ValueError('clips: say of what, units={"clip_low": "clip"} or "sequence"')
        if self.averages:  # over all rows, so none may be left out
            object.__setattr__(self, "zero_at_zero_advantage", False)
        if self.on_errors:
            object.__setattr__(self, "refused", {**ERRORS_ALONE, **self.refused})
        if self.matches:
            object.__setattr__(self, "refused", {**MATCHED_ALONE, **self.refused})

    @property
    def compares_groups(self) -> bool:
        """Whether it looks at other rows of a group."""
        return self.whole_groups or self.batch_statistics is not None

    def joined(self, declared: Mapping[str, Any]) -> Facts:
        """With what is declared above: it wins, and what is read and refused adds up."""
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
