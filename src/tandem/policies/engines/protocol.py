"""The protocol of a rollout engine: whoever samples token ids for a policy.

An engine with a copy of the weights subclasses `RolloutEngine` and writes two methods, `sync` and
`answer`. One that samples ahead without being emptied at each handover says so by `handover_modes`,
and writes `answer_as` and `keep` for "pinned", `swap` for "in_flight".
`@register_rollout_engine("name")` above the class makes it `rollout=name`; what stands in its
constructor with a default is set by `rollout.engine.KEY=...`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from torch import Tensor, nn

Handover = Literal["pinned", "drain", "in_flight"]

if TYPE_CHECKING:
    from tandem.policies.language.records import Answers, Endings, Sampling
    from tandem.policies.lora import Lora
    from tandem.policies.weights import Precision


class Engine(Protocol):
    """All that a policy wants of whoever samples."""

    def answer(
        self, prompts: Sequence[list[int]], keys: Tensor, *, sampling: Sampling, endings: Endings
    ) -> Answers:
        """keys.shape[1] answers to every prompt, prompt by prompt. keys: [P, G] int64.

        A row ends with the end token, or with the token that completes a stop string, and its
        log-probabilities are those of the distribution that it was sampled from.
        """


class Weights(Protocol):
    """What an engine with weights of its own is given."""

    adapter: bool  # low-rank adapters alone, for the weights that it has

    is_sharded: bool  # each rank holds a part: only a copy can be saved
    nbytes: int  # of the files, about

    def save(self, folder: Path) -> None:
        """In Hugging Face format, or in peft's if they are adapters."""

    def tensors(self) -> Mapping[str, Tensor]:
        """What the files would hold, in their order. Of any shape [...]."""

    def copied(self) -> Weights:
        """The same as they are now, in host memory. Ranks with a part each meet here, and the first
        one has the whole."""


class Hostable(Protocol):
    """What an engine may want to know of the policy that it samples for."""

    vocabulary: int  # token ids are below it
    model: nn.Module  # whose weights are trained, adapters in their places and not merged
    precision: Precision  # that it samples in


class EngineOption(ABC):
    """What `rollout.engine` makes, before any weight is there."""

    samples: ClassVar[Literal["tokens", "flow"]] = "tokens"  # the kind of policy it is for
    sleeps: ClassVar[bool] = False  # during training, so that the accelerator's memory is free
    shares_weights: ClassVar[bool] = False  # it samples from those that are trained: none travel
    reports_entropy: ClassVar[bool] = False  # of the distribution that each token was sampled from
    # It looks at pictures: its prompts are `PromptIds`, whose `images` stand among their tokens.
    sees: ClassVar[bool] = False
    samples_mixed: ClassVar[bool] = True  # under autocast, where the trainer computes so

    def check(self, sampling: Sampling, lora: Lora | None) -> None:  # noqa: B027, none is a choice
        """Whether it is there and can do what is wanted. Raises ValueError."""

    @abstractmethod
    def host(self, policy: Hostable) -> Engine:
        """The engine of a policy whose weights are there: a RolloutEngine, but where it shares
        them."""


class WeightHolder(EngineOption):
    """An engine that holds a copy of the weights: `sync` is enough for one that never sleeps."""

    capacity: int = 256  # rows that it has room for at once
    handovers: Sequence[Path] = ()  # folders of the newest weights, oldest first, to compare with
    handover_modes: frozenset[Handover] = frozenset({"drain"})  # of rollout.handover

    @abstractmethod
    def sync(self, weights: Weights, version: str) -> None:
        """Take these weights; from now on the answers are theirs.

        With `drain` no row is under way. With `pinned` rows of older versions go on as they are.
        """

    def swap(self, weights: Weights, version: str) -> None:
        """Take these weights under the rows that are under way: with `in_flight`. `answer` says of
        each token which version took it."""
        raise NotImplementedError(f"{type(self).__name__} changes no weights under its rows")

    def keep(self, versions: int) -> None:
        """So many of the newest versions stay at hand for rows that were begun with them."""

    def renew(self, weights: Weights, version: str) -> None:
        """Take those that were handed over last again, unless another process has seen to it."""
        self.sync(weights, version)

    def follow(self, weights: Weights, version: str) -> None:
        """Another process has handed these over; the answers that count are theirs."""
        self.sync(weights, version)

    def is_there(self) -> bool:
        """Whether it answers, found out in seconds: of several engines one may be gone."""
        return True

    def is_asleep(self) -> bool:
        """Whether somebody left it so."""
        return False

    def sleep(self, *, keep: bool) -> None:
        """Free the accelerator's memory. `keep`: remember the weights elsewhere."""

    def wake(self, tag: str) -> None:
        """Take memory again: for "weights", or for the "kv_cache"."""


class RolloutEngine(WeightHolder):
    """An engine of tokens that holds a copy of the weights: `sync` and `answer` are enough.

    `answer` may raise Forgotten where its copy is not the one that was handed over last.
    """

    def host(self, policy: Hostable) -> RolloutEngine:
        return self

    def answer_as(
        self,
        version: str,
        prompts: Sequence[list[int]],
        keys: Tensor,
        *,
        sampling: Sampling,
        endings: Endings,
    ) -> Answers:
        """The answers of a version that it keeps: with `pinned`. keys: [P, G] int64."""
        raise NotImplementedError(f"{type(self).__name__} keeps no older weights")

    @abstractmethod
    def answer(
        self, prompts: Sequence[list[int]], keys: Tensor, *, sampling: Sampling, endings: Endings
    ) -> Answers:
        """As any engine does. keys: [P, G] int64."""


def check_kind(engine: EngineOption, kind: Literal["tokens", "flow"]) -> None:
    """Raise ValueError for an engine of another kind of policy."""
    made = {"tokens": "tokens", "flow": "pictures"}
    if engine.samples != kind:
        raise ValueError(
            f"rollout.engine={type(engine).__name__} samples {made[engine.samples]}, and this "
            f"policy makes {made[kind]}; leave rollout as the model chooses it"
        )


def number_of(version: str) -> int:
    """How many handovers of its run there were, this one included: a version is `RUN-NUMBER`."""
    return int(version.rpartition("-")[2])


def run_of(version: str) -> str:
    """The run that handed it over."""
    return version.rpartition("-")[0]


def follows(version: str, other: str) -> bool:
    """Whether it is the other one, or a later one of the same run."""
    return run_of(version) == run_of(other) and number_of(version) >= number_of(other)


class Forgotten(RuntimeError):
    """An engine does not hold the weights that it was given: it was started again, say."""
