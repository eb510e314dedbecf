"""The head of a language model, apart from its trunk: for many chunks of one pass, its gradient
added in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional

from tandem.policies.language.pretrained import probed


class Total:
    """A sum of gradients, in float32."""

    def __init__(self) -> None:
        self.sum: Tensor | None = None

    def add(self, gradient: Tensor) -> None:
        """Add a gradient [V, D] to the sum."""
        self.sum = gradient.float() if self.sum is None else self.sum.add_(gradient)

    def take(self) -> Tensor:
        """The sum [V, D], given once."""
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
    head itself. The head is [N, D] -> [N, V].
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


@torch.no_grad()
def logits_are_head_of_trunk(model: nn.Module) -> bool:
    """Whether nothing comes between trunk, head and logits: no scale, no cap, to the last bit."""
    trunk, head = model.get_decoder(), model.get_output_embeddings()
    if trunk is model or head is None:
        return False
    calls: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {trunk: [], head: []}

    def watch(module: nn.Module, given: tuple, out: Tensor | Mapping[str, Tensor]) -> None:
        result = out if isinstance(out, Tensor) else out["last_hidden_state"]
        calls[module].append((given, result))

    hooks = [module.register_forward_hook(watch) for module in calls]
    tokens = torch.arange(12, device=head.weight.device)[None] % head.weight.shape[0]
    with probed(model):
        logits = model(input_ids=tokens, use_cache=False).logits
    for hook in hooks:
        hook.remove()
    if [len(seen) for seen in calls.values()] != [1, 1]:
        return False
    (_, states), ((read,), made) = calls[trunk][0], calls[head][0]
    return torch.equal(read, states) and torch.equal(made.float(), logits.float())
