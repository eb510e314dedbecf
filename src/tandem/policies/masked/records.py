"""Records of a masked-diffusion policy: sampling options, samples, and masked states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from tandem.contracts import at_least, facts_of, positive
from tandem.policies.language.records import Sampling, TokenSample
from tandem.policies.masked.orders import ORDERS

Trailing = Literal["counted", "hidden", "shown"]
Order = Literal["random", "confidence", "entropy", "margin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedSampling(Sampling):
    """Sampling options: `max_new_tokens` positions, some of which each step unmasks."""

    dynamics: ClassVar[str] = "masked"
    in_time: ClassVar[bool] = False

    steps: Annotated[int, positive] | None = None  # passes per answer; null: one per position
    # Positions that are filled before the next block; null: all.
    block_length: Annotated[int, positive] | None = None
    unmask_order: Order = "entropy"  # which hidden positions are unmasked first
    # Instead of `steps`: the positions of lowest entropy, as long as the sum of their entropies
    # minus the largest one is at most this many nats; at least one position.
    entropy_bound: Annotated[float, at_least(0)] | None = None

    def __post_init__(self) -> None:
        Sampling.__post_init__(self)
        if self.engine is not None:
            raise ValueError(
                "rollout.engine: no engine unmasks answers; leave it out, or choose an "
                "autoregressive model"
            )
        if self.stop:
            raise ValueError(
                "rollout.stop: answers are not written left to right; set rollout.stop=[]"
            )
        if self.max_new_tokens % self.block:
            raise ValueError(
                f"rollout.block_length={self.block} does not divide rollout.max_new_tokens="
                f"{self.max_new_tokens}"
            )
        if self.steps is not None and self.entropy_bound is not None:
            raise ValueError(
                f"rollout.steps={self.steps} is not read under rollout.entropy_bound="
                f"{self.entropy_bound:g}; set rollout.steps=null, or rollout.entropy_bound=null"
            )
        if (wanted := self.violation_of_steps(self.total_steps)) is not None:
            raise ValueError(f"rollout.steps={self.total_steps}: {wanted}")

    def violation_of_steps(self, number: int) -> str | None:
        """The condition that a number of steps violates, in words; None: it violates none."""
        blocks = self.max_new_tokens // self.block
        if blocks <= number <= self.max_new_tokens and number % blocks == 0:
            return None
        return (
            f"each of the {blocks} blocks needs the same number of steps, from 1 to its "
            f"{self.block} positions"
        )

    @property
    def chooses_by_candidate(self) -> bool:
        """Whether positions are selected by the token that was drawn there."""
        return self.entropy_bound is None and ORDERS[self.unmask_order].by_candidate

    @property
    def block(self) -> int:
        """Positions of a block."""
        return self.max_new_tokens if self.block_length is None else self.block_length

    @property
    def total_steps(self) -> int:
        """Steps of a whole answer, at most."""
        return self.max_new_tokens if self.steps is None else self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedSample(TokenSample):
    """Rows of a prompt and, right after it, the L positions of its answer.

    At step s of the sampler, the positions with `when` >= s were hidden.
    """

    when: Tensor  # [B, L] int64 step that wrote the position; 0 for demonstrations
    answer_length: Tensor  # [B] int64 up to and including the first end token
    key: Tensor  # [B] int64 key of the noise of its likelihood
    stratum: Tensor  # [B] int64 key shared by rows whose levels are spread evenly
    place: Tensor  # [B] float64 in [0, 1), the row's position among those


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenRows:
    """Rows from which masked states are made: what is scored, and the keys of the noise."""

    free: Tensor  # [B, L] bool: scored, so it may be hidden
    void: Tensor  # [B, L] bool: after the end of the answer, and not scored
    prompt: Tensor  # [B, S] bool: the columns of the prompt
    when: Tensor  # [B, L] int64
    key: Tensor  # [B] int64
    stratum: Tensor  # [B] int64
    place: Tensor  # [B] float64

    @classmethod
    def of(cls, sample: MaskedSample, mask: Tensor) -> HiddenRows:
        """The rows of a sample, scored where `mask` [B, T] is True; T is at most L."""
        free = torch.nn.functional.pad(mask, (0, sample.when.shape[1] - mask.shape[1]))
        position = torch.arange(free.shape[1], device=free.device)
        column = torch.arange(sample.tokens.shape[1], device=free.device)
        return cls(
            free=free,
            void=~free & (position >= sample.answer_length[:, None]),
            prompt=column < sample.prompt_length[:, None],
            when=sample.when,
            key=sample.key,
            stratum=sample.stratum,
            place=sample.place,
        )

    @classmethod
    def from_sampling(cls, sampling: MaskedSampling) -> HiddenRows:
        """One row, with an answer that took all steps of the sampler."""
        width, one = sampling.max_new_tokens, torch.zeros(1, dtype=torch.int64)
        return cls(
            free=torch.ones(1, width, dtype=torch.bool),
            void=torch.zeros(1, width, dtype=torch.bool),
            prompt=torch.zeros(1, 1, dtype=torch.bool),
            when=torch.arange(width)[None] * sampling.total_steps // width,
            key=one,
            stratum=one,
            place=one.double(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Masked states of rows: N passes, with the weight of each in the value of a position."""

    row: Tensor  # [N] int64 index of the row
    hidden: Tensor  # [N, L] bool
    weight: Tensor  # [N, L] float64; 0 where the position is not scored
    count: int  # states drawn per row, including those that need no pass
    prompt: Tensor | None = None  # [N, S] bool: hidden columns of the prompt; None: none

    def values(self, logp: Tensor, rows: int) -> Tensor:
        """sum over the states of a row of weight * logp: [N, L] -> [rows, L] nats."""
        return _sum_rows(self.weight.to(logp.dtype) * logp, self.row, rows)

    def upper_values(self, logp: Tensor, free: Tensor, *, beta: float) -> Tensor:
        """U_i = log(mean over the states of p^beta / t where i is hidden) / beta, at positions
        that some state hides; scaled so that the mean over `free` is that over those positions.

        t is the share of the scored positions that is hidden. Source: SPG, arXiv:2510.09541. logp
        [N, L], free [rows, L] -> [rows, L] nats.
        """
        scored = self.weight != 0
        share = scored.sum(1).double() / free[self.row].sum(1).clamp(min=1)
        each = torch.where(scored, beta * logp - share.log()[:, None].to(logp.dtype), -torch.inf)
        highest = logp.new_full(free.shape, -torch.inf)
        index = self.row[:, None].expand_as(each)
        highest = highest.scatter_reduce(0, index, each.detach(), "amax")
        seen = highest.isfinite()
        highest = torch.where(seen, highest, 0)
        powers = torch.where(scored, (each - highest[self.row]).exp(), 0)
        mean = _sum_rows(powers, self.row, len(free)) / self.count
        bound = (torch.where(seen, mean, 1).log() + highest) / beta
        scale = free.sum(1, keepdim=True).double() / seen.sum(1, keepdim=True).clamp(min=1)
        return torch.where(seen, bound * scale.to(bound.dtype), 0)


def _sum_rows(values: Tensor, row: Tensor, rows: int) -> Tensor:
    """[N, L] -> [rows, L]"""
    return values.new_zeros(rows, values.shape[1]).index_add(0, row, values)


Likelihood = Callable[[HiddenRows], States]


def draws(likelihood: Likelihood) -> bool:
    """Whether a likelihood is of states drawn anew: not the sampler's, and not without noise."""
    facts = facts_of(likelihood)
    return not (facts.replays or facts.noiseless)
