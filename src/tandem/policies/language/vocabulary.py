"""Log-probabilities of tokens that were taken; [B, T, V] never exists in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tandem.policies.language.records import TokenSample
from tandem.policies.language.sampling import entropy_of, widened


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIndex:
    """Where the N steps of a mask [B, T] stand, and what was taken there."""

    row: Tensor  # [N] int64
    step: Tensor  # [N] int64
    column: Tensor  # [N] int64 of the token in its row; the logits stand one column before
    token: Tensor  # [N] int64
    temperature: Tensor  # [N]

    @classmethod
    def of(cls, sample: TokenSample, mask: Tensor) -> TokenIndex:
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
    places: TokenIndex,
    *,
    vocabulary: int,
    logit_budget: int,
    also: Sequence[str],
) -> dict[str, Tensor]:
    """log softmax(head(states) / temperature)[token] as "logp", and each of `also`: [N].

    A chunk over N holds at most `logit_budget` logits; several are recomputed one by one in
    backward.
    """
    size = max(logit_budget // vocabulary, 1)
    single = len(states) <= size
    tempered = bool((places.temperature != 1).any())  # asked once: a GPU must be waited for
    head = head if single else for_chunks(head)

    def of_chunk(states: Tensor, token: Tensor, temperature: Tensor) -> Tensor:
        logits = widened(head(states))
        if tempered:
            logits = logits / temperature[:, None].to(logits.dtype)
        logp = logits.log_softmax(-1)
        chosen = logp.gather(-1, token[:, None])[:, 0]
        return torch.stack([chosen, *(ALSO[name](logp, chosen) for name in also)])

    columns = (states, places.token, places.temperature)
    if single:
        numbers = of_chunk(*columns)
    else:
        chunks = zip(*(column.split(size) for column in columns), strict=True)
        numbers = torch.cat(
            [checkpoint(of_chunk, *chunk, use_reentrant=False) for chunk in chunks], 1
        )
    return dict(zip(("logp", *also), numbers, strict=True))


class Total:
    """A sum of gradients, in float32."""

    def __init__(self) -> None:
        self.sum: Tensor | None = None

    def add(self, gradient: Tensor) -> None:
        self.sum = gradient.float() if self.sum is None else self.sum.add_(gradient)

    def take(self) -> Tensor:
        total, self.sum = self.sum, None
        return total


class _Summed(torch.autograd.Function):
    """A number that is asked for its gradient when all chunks have added theirs to the total,
    which is the weight's."""

    @staticmethod
    def forward(ctx: FunctionCtx, weight: Tensor, total: Total) -> Tensor:
        ctx.dtype, ctx.total = weight.dtype, total
        return weight.new_zeros(())

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.total.take().to(ctx.dtype), None


class _InChunk(torch.autograd.Function):
    """A cast weight, whose gradient goes into the total and not through autograd, which would add
    in the dtype of the cast."""

    @staticmethod
    def forward(ctx: FunctionCtx, summed: Tensor, cast: Tensor, total: Total) -> Tensor:
        ctx.total = total
        ctx.save_for_backward(summed)
        return cast.view_as(cast)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None]:
        ctx.total.add(gradient)
        return torch.zeros_like(*ctx.saved_tensors), None, None


def for_chunks(head: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A head for many chunks of one pass, and for their recomputation: where it computes in less
    than float32 it is cast once, and the gradients of its chunks are added in float32.

    Autocast would cast the weight for each chunk, or keep what it cast: beyond an optimiser step,
    and with gradients of all chunks added in the narrow dtype. Log-probabilities are those of the
    head itself.
    """
    if type(head) is not nn.Linear:
        return head
    dtype = _dtype_of_pass(head.weight)
    if torch.finfo(dtype).bits >= 32:
        return head
    own = [_shared(weight, dtype) for weight in (head.weight, head.bias) if weight is not None]
    return lambda states: functional.linear(states, *(_InChunk.apply(*parts) for parts in own))


def _shared(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Total]:
    total = Total()
    return _Summed.apply(weight, total), weight.detach().to(dtype), total


def _dtype_of_pass(weight: Tensor) -> torch.dtype:
    """Of the product with a weight, under autocast or not."""
    kind = weight.device.type
    # There is none on the meta device, where an estimate counts what a pass holds.
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return weight.dtype
