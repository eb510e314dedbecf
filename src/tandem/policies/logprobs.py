"""Log-probabilities of tokens that were taken; [B, T, V] never exists in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tandem.policies.records import TokenSample
from tandem.policies.sampling import entropy_of, widened


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the N steps of a mask [B, T] stand, and what was taken there."""

    row: Tensor  # [N] int64
    step: Tensor  # [N] int64
    column: Tensor  # [N] int64 of the token in its row; the logits stand one column before
    token: Tensor  # [N] int64
    temperature: Tensor  # [N]

    @classmethod
    def of(cls, sample: TokenSample, mask: Tensor) -> Places:
        row, step = mask.nonzero(as_tuple=True)
        column = sample.prompt_length[row] + step
        return cls(
            row=row,
            step=step,
            column=column,
            token=sample.tokens[row, column],
            temperature=sample.temperature[row],
        )

    def read(self, rows: int) -> Tensor:
        """Tokens of each row that a forward pass must read, [B]: the last one is never read."""
        blank = self.column.new_zeros(rows)
        return blank.scatter_reduce(0, self.row, self.column, "amax")

    def gather(self, states: Tensor, start: Tensor) -> Tensor:
        """What stands one column before each token. [R, S, D] -> [N, D].

        start: [B], where each row begins among the R x S states.
        """
        flat = start[self.row] + self.column - 1
        return states.flatten(0, 1).index_select(0, flat)

    def scatter(self, values: Tensor, mask: Tensor) -> Tensor:
        """[N] -> [B, T], 0 outside the mask."""
        blank = values.new_zeros(mask.shape)
        return blank.index_put((self.row, self.step), values)


# What else can be read off the distribution of a step: (logp [N, V], logp of the token [N]) -> [N].
ALSO: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "entropy": lambda logp, chosen: entropy_of(logp, logp.exp()),
    "likeliest": lambda logp, chosen: (chosen >= logp.amax(-1)).to(logp.dtype),
}


def token_logp(
    states: Tensor,
    head: Callable[[Tensor], Tensor],
    places: Places,
    *,
    vocabulary: int,
    logit_budget: int,
    also: Sequence[str],
) -> dict[str, Tensor]:
    """log softmax(head(states) / temperature)[token] as "logp", and each of `also`: [N].

    A chunk over N holds at most `logit_budget` logits; several are recomputed one by one in
    backward.
    """

    head = cast_once(head)

    def of_chunk(states: Tensor, token: Tensor, temperature: Tensor) -> Tensor:
        return _numbers(head(states), token, temperature, also)

    size = max(logit_budget // vocabulary, 1)
    columns = (states, places.token, places.temperature)
    if len(states) <= size:
        numbers = of_chunk(*columns)
    else:
        chunks = zip(*(column.split(size) for column in columns), strict=True)
        numbers = torch.cat(
            [checkpoint(of_chunk, *chunk, use_reentrant=False) for chunk in chunks], 1
        )
    return dict(zip(("logp", *also), numbers, strict=True))


class _AsCast(torch.autograd.Function):
    """A weight as it was cast before; its gradient is cast back, as if it had been cast here."""

    @staticmethod
    def forward(ctx: FunctionCtx, weight: Tensor, cast: Tensor) -> Tensor:
        ctx.dtype = weight.dtype
        return cast.view_as(cast)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.to(ctx.dtype), None


def cast_once(head: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A head for many chunks of one pass, and for their recomputation, under autocast.

    Autocast would cast the weight for each chunk, or keep what it cast: beyond an optimiser step,
    and with gradients of all chunks added in the narrow dtype. The numbers are those of a cast for
    each chunk.
    """
    if type(head) is not nn.Linear or head.weight.dtype != torch.float32:
        return head
    weight, bias, kind = head.weight, head.bias, head.weight.device.type
    # There is none on the meta device, where an estimate counts what a pass holds.
    if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
        return head
    narrow = weight.detach().to(torch.get_autocast_dtype(kind))
    return lambda states: functional.linear(states, _AsCast.apply(weight, narrow), bias)


def _numbers(logits: Tensor, token: Tensor, temperature: Tensor, also: Sequence[str]) -> Tensor:
    """Log-probability of each row's token, then whatever else was asked: [1 + len(also), N]."""
    logits = widened(logits)
    if bool((temperature != 1).any()):
        logits = logits / temperature[:, None].to(logits.dtype)
    logp = logits.log_softmax(-1)
    chosen = logp.gather(-1, token[:, None])[:, 0]
    return torch.stack([chosen, *(ALSO[name](logp, chosen) for name in also)])
