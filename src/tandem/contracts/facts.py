"""Facts of a component: what it declares beside its signature, in one frozen record.

A record hangs on the function or class itself and travels with it through any number of
`functools.partial`s, so the loop and the configuration ask the part, whoever wrote it.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from tandem.contracts.admitted import Domain, refuse_missing_numbers, refuse_unlisted

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
    # Of rewards and data: what they judge and what they show; None: either.
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
        more = Facts(**declared)
        both = {
            "reads": self.reads | more.reads,
            "networks": self.networks | more.networks,
            "refused": {**self.refused, **more.refused},
            "units": {**self.units, **more.units},
        }
        return replace(self, **{**declared, **both})


NOTHING = Facts()


class Wrapper(ABC):
    """A component made of others of its kind, whose facts depend on theirs."""

    @abstractmethod
    def own_facts(self, declared: Facts) -> Facts:
        """Those of this object; `declared`: of its class."""

    @abstractmethod
    def wrapped(self) -> Mapping[str, Callable]:
        """Key below its own -> what it calls."""


class Switch(ABC):
    """A part that a coefficient of 0 switches off: nothing it holds is called then."""

    @property
    @abstractmethod
    def is_off(self) -> bool: ...


def declare(**facts: Any) -> Callable:
    """A decorator that declares facts of a function or class that is no option of a group."""

    def decorate(component: Callable) -> Callable:
        refuse_missing_numbers(component, **facts)
        component.facts = facts_of(component).joined(facts)
        return component

    return decorate


def facts_of(component: Callable | None) -> Facts:
    """The facts that a component declared, through any number of `functools.partial`s."""
    owner, _ = unwrap_partial(component)
    declared = getattr(owner, "facts", NOTHING)
    return owner.own_facts(declared) if isinstance(owner, Wrapper) else declared


def name_of(component: Callable) -> str:
    """The option that chooses it, else the name of the function or class."""
    owner, _ = unwrap_partial(component)
    return facts_of(component).option or getattr(owner, "__name__", type(owner).__name__)


def iterate_innermost(component: Callable, where: str) -> Iterator[tuple[str, Callable]]:
    """The parts within all that wraps a component, each under its key."""
    owner, _ = unwrap_partial(component)
    if not isinstance(owner, Wrapper):
        yield where, component
        return
    for key, inner in owner.wrapped().items():
        yield from iterate_innermost(inner, f"{where}.{key}")


def batch_statistics_of(component: Callable) -> Callable | None:
    """The batch statistics of a loss, bound to numbers of the loss; None if it needs none."""
    return bind_declared(component, facts_of(component).batch_statistics)


def metrics_of(component: Callable) -> Callable | None:
    """The metrics that a component declared, bound to numbers of the component; None: it has none
    of its own."""
    return bind_declared(component, facts_of(component).metrics)


def summary_of(component: Callable) -> Callable | None:
    """The summary of each row that statistics see, with numbers of the loss; None: the row."""
    return bind_declared(component, facts_of(component).summary)


def bind_declared(component: Callable, function: Callable | None) -> Callable | None:
    """A function that a component declared, bound to the numbers of the component that are keywords
    of that function; None stays None."""
    if function is None:
        return None
    return functools.partial(function, **select_numbers(function, numbers_of(component)))


def select_numbers(function: Callable, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the numbers that a function takes; one with `**numbers` takes them all."""
    parameters = inspect.signature(function).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return {name: x for name, x in numbers.items() if takes_all or name in parameters}


def numbers_of(component: Callable | None) -> dict[str, Any]:
    """The keywords of a component: what was bound to it, else its defaults; of a record its
    fields."""
    owner, bound = unwrap_partial(component)
    if is_dataclass(owner) and not isinstance(owner, type):
        return {one.name: getattr(owner, one.name) for one in fields(owner)}
    return defaults_of(owner) | bound


def parts_of(component: Any, segment: str | None = None) -> Iterator[Callable]:
    """All that a component would call: itself, and what stands in its numbers.

    `segment`: for the steps of that one alone; None: for all.
    """
    if isinstance(component, Switch) and component.is_off:
        return
    if isinstance(component, Mapping):
        for item in component.values():
            yield from parts_of(item, segment)
    elif callable(component) or is_dataclass(component):
        yield unwrap_partial(component)[0]
        others = {*facts_of(component).segments} - {segment} if segment else ()
        for name, item in numbers_of(component).items():
            if name not in others:
                yield from parts_of(item, segment)


def rewards_read_by(component: Any) -> set[str]:
    """The rewards that a component, or what stands in its numbers, reads by their names."""
    if isinstance(component, Switch) and component.is_off:
        return set()
    if isinstance(component, Mapping):
        return set().union(*map(rewards_read_by, component.values()))
    if not (callable(component) or is_dataclass(component)):
        return set()
    numbers = numbers_of(component)
    given = [numbers[number] or () for number in facts_of(component).named_rewards]
    named = {name for one in given for name in ((one,) if isinstance(one, str) else one)}
    return named.union(*map(rewards_read_by, numbers.values()))


def defaults_of(function: Callable | None) -> dict[str, Any]:
    """The keyword-only numbers of a function that have a default."""
    return getattr(function, "__kwdefaults__", None) or {}


def unwrap_partial(component: Callable | None) -> tuple[Callable | None, dict[str, Any]]:
    """The function inside any number of `functools.partial`s, and the numbers bound to it."""
    numbers: dict[str, Any] = {}
    while isinstance(component, functools.partial):
        numbers = {**component.keywords, **numbers}
        component = component.func
    return component, numbers
