"""The protocol of rollout engines, which sample token ids for a policy.

An engine with its own copy of the weights subclasses `RolloutEngine` and implements `sync` and
`answer`. One that samples ahead without draining at each handover lists the modes it supports in
`handover_modes`, and implements `answer_as` and `keep` for "pinned", `swap` for "in_flight".
`@register_rollout_engine("name")` makes it `rollout=name`; constructor arguments with a default are
set by `rollout.engine.KEY=...`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

Handover = Literal["pinned", "drain", "in_flight"]

if TYPE_CHECKING:
    from tandem.policies.language.records import Answers, Endings, Sampling
    from tandem.policies.lora import Lora
    from tandem.policies.weights import Precision


class Engine(Protocol):
    """The one method that a policy calls to sample."""

    def answer(
        self, prompts: Sequence[list[int]], keys: Tensor, *, sampling: Sampling, endings: Endings
    ) -> Answers:
        """Sample G answers to each of P prompts, ordered by prompt. keys: [P, G] int64.

        A row ends with the end token or with the token that completes a stop string. Its
        log-probabilities are those of the distribution that it was sampled from. Rows that arrive
        one by one are reported to `tandem.progress.PROGRESS`, as the built-in engines do.
        """


class Weights(Protocol):
    """The weights that are handed to an engine with its own copy."""

    adapter: bool  # low-rank adapters only, for base weights that the engine has

    is_sharded: bool  # each rank has a shard: only `copy_to_host` can be saved
    nbytes: int  # approximate size of the files
    device: torch.device  # on which they are trained

    def save(self, folder: Path) -> None:
        """Save in Hugging Face format; adapters in peft's format."""

    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors of the files, in file order. Of any shape [...]."""

    def copy_to_host(self) -> Weights:
        """A snapshot in host memory. Ranks with shards call it together; the first one gets the
        full weights."""


class Hostable(Protocol):
    """The properties of a policy that an engine may read."""

    vocabulary: int  # token ids are below this
    model: nn.Module  # the trained network, with adapters unmerged
    precision: Precision  # of sampling


class EngineOption(ABC):
    """The object that `rollout.engine` configures, before weights are loaded."""

    samples: ClassVar[Literal["tokens", "flow"]] = "tokens"  # the kind of policy it serves
    sleeps: ClassVar[bool] = False  # frees the accelerator's memory during training
    # Samples from the trained weights themselves, so none are sent.
    shares_weights: ClassVar[bool] = False
    reports_entropy: ClassVar[bool] = False  # of the distribution that each token was sampled from
    # Reads images: its prompts are `PromptIds`, with `images` among their tokens.
    sees: ClassVar[bool] = False
    starts: ClassVar[bool] = False  # whether the run starts its servers, on its own devices
    samples_mixed: ClassVar[bool] = True  # under autocast if the trainer computes under autocast
    # Values of rollout.handover that an engine with a copy of the weights supports; a rule reads
    # them from the class.
    handover_modes: ClassVar[frozenset[Handover]] = frozenset({"drain"})

    @property
    def writes_to(self) -> Path | None:
        """The folder of its key `folder`, which the run must be able to write to; None: no key."""
        return None

    def check(self, sampling: Sampling, lora: Lora | None) -> None:  # noqa: B027, optional
        """Raise ValueError if the engine is unavailable or does not support these settings."""

    def check_episodes(self, tokens: int) -> None:  # noqa: B027, optional
        """Warn if the engine has less room than an episode of `tokens`, its prompt included."""

    @abstractmethod
    def host(self, policy: Hostable) -> Engine:
        """The engine for a policy with loaded weights; a RolloutEngine unless it shares them."""


class WeightHolder(EngineOption):
    """An engine with a copy of the weights. Only `sync` is required of one that never sleeps."""

    capacity: int = 256  # rows in flight at most
    # Whether threads may ask for samples at once, as they do ahead of training.
    concurrent: ClassVar[bool] = False
    handovers: Sequence[Path] = ()  # folders of the newest weights, oldest first, for diagnosis

    @abstractmethod
    def sync(self, weights: Weights, version: str) -> None:
        """Load these weights; later answers use them.

        With `drain` no row is in flight. With `pinned` rows of older versions continue unchanged.
        """

    def swap(self, weights: Weights, version: str) -> None:
        """Replace the weights while rows are in flight, with `in_flight`. `answer` then reports the
        version that sampled each token."""
        raise NotImplementedError(f"{type(self).__name__} cannot swap weights with rows in flight")

    def keep(self, versions: int) -> None:
        """Keep this many of the newest versions for rows that started with them."""

    def renew(self, weights: Weights, version: str) -> None:
        """Load the newest weights again, unless another process already did."""
        self.sync(weights, version)

    def follow(self, weights: Weights, version: str) -> None:
        """Use the weights of this version, which another process handed over."""
        self.sync(weights, version)

    def is_there(self) -> bool:
        """Whether it responds, decided within seconds: one of several engines may be down."""
        return True

    def is_asleep(self) -> bool:
        """Whether an earlier process left it asleep."""
        return False

    def sleep(self, *, keep: bool) -> None:
        """Free the accelerator's memory. `keep`: keep the weights in host memory."""

    def wake(self, tag: str) -> None:
        """Allocate memory again, for "weights" or "kv_cache"."""


class RolloutEngine(WeightHolder):
    """A token engine with a copy of the weights. `sync` and `answer` are required.

    `answer` may raise Forgotten if the engine no longer has the newest weights.
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
        """Answers of a kept version, with `pinned`. keys: [P, G] int64."""
        raise NotImplementedError(f"{type(self).__name__} does not keep older weights")

    @abstractmethod
    def answer(
        self, prompts: Sequence[list[int]], keys: Tensor, *, sampling: Sampling, endings: Endings
    ) -> Answers:
        """See `Engine.answer`. keys: [P, G] int64.

        Ahead of training, threads call it for one prompt each, with keys on the CPU; in turn unless
        the engine is `concurrent`.
        """


def check_kind(engine: EngineOption, kind: Literal["tokens", "flow"]) -> None:
    """Raise ValueError for an engine that serves another kind of policy."""
    made = {"tokens": "tokens", "flow": "pictures"}
    if engine.samples != kind:
        raise ValueError(
            f"rollout.engine={type(engine).__name__} samples {made[engine.samples]}, and this "
            f"policy makes {made[kind]}; remove rollout=, so that the model chooses it"
        )


def number_of(version: str) -> int:
    """The number of handovers in its run, including this one: a version is `RUN-NUMBER`."""
    return int(version.rpartition("-")[2])


def run_of(version: str) -> str:
    """The run of a version."""
    return version.rpartition("-")[0]


def follows(version: str, other: str) -> bool:
    """Whether a version equals the other one, or is a later one of the same run."""
    return run_of(version) == run_of(other) and number_of(version) >= number_of(other)


class Forgotten(RuntimeError):
    """The engine no longer has the weights it was given, for example after a restart."""
