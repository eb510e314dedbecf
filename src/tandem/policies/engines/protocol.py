"""Who samples answers to prompts, as token ids: our own loop, or a server with its own weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor

from tandem.policies.decoding import Answers, Endings
from tandem.policies.sampling import Sampling


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

    def save(self, folder: Path) -> None:
        """In Hugging Face format, or in peft's if they are adapters."""


class Served(Engine, Protocol):
    """An engine that holds a copy of the weights, and says so: `answer` raises Forgotten where
    that copy is not the one that was handed over last."""

    def sync(self, weights: Weights, version: str) -> None:
        """Take these weights; from now on the answers are theirs."""

    def renew(self, weights: Weights, version: str) -> None:
        """Take those that were handed over last again, unless another process has seen to it."""

    def follow(self, weights: Weights, version: str) -> None:
        """Another process has handed these over; the answers that count are theirs."""

    def is_asleep(self) -> bool:
        """Whether somebody left it so."""

    def sleep(self, *, keep: bool) -> None:
        """Free the accelerator's memory. `keep`: remember the weights elsewhere."""

    def wake(self, tag: str) -> None:
        """Take memory again: for "weights", or for the "kv_cache"."""


class Forgotten(RuntimeError):
    """An engine does not hold the weights that it was given: it was started again, say."""
