"""The head of a language model, computed in chunks of a pass, whose gradients are summed in
float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional

from tandem.contracts.wrong_output import wrong_value
from tandem.policies.language.pretrained import Pretrained, vocabulary_of, without_flash_attention


class Total:
    """A sum of gradients in float32."""

    def __init__(self) -> None:
        self.sum: Tensor | None = None

    def add(self, gradient: Tensor) -> None:
        """Add a gradient [V, D] to the sum."""
        self.sum = gradient.float() if self.sum is None else self.sum.add_(gradient)

    def take(self) -> Tensor:
        """The sum [V, D], which is cleared."""
        total, self.sum = self.sum, None
        return total


class _Summed(torch.autograd.Function):
    """A zero whose backward runs after all chunks have added their gradients; it returns the total
    as the weight's gradient."""

    @staticmethod
    def forward(ctx: FunctionCtx, weight: Tensor, total: Total) -> Tensor:
        ctx.dtype, ctx.total = weight.dtype, total
        return weight.new_zeros(())

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.total.take().to(ctx.dtype), None


class _InChunk(torch.autograd.Function):
    """A cast weight. Its gradient is added to the total, because autograd would add in the dtype of
    the cast."""

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
    """A head for many chunks of one pass and their recomputation. If it computes below float32, its
    weight is cast once, and the gradients of chunks are summed in float32.

    Autocast would cast the weight for each chunk, or cache the cast beyond an optimiser step, and
    would sum the chunks' gradients in the narrow dtype. Log-probabilities equal those of the
    head itself. The head is [N, D] -> [N, V].
    """
    if type(head) is not nn.Linear:
        return head
    dtype = _dtype_of_pass(head.weight)
    if torch.finfo(dtype).bits >= 32:
        return head
    own = [
        _share_weight(weight, dtype) for weight in (head.weight, head.bias) if weight is not None
    ]
    return lambda states: functional.linear(states, *(_InChunk.apply(*parts) for parts in own))


def _share_weight(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Total]:
    total = Total()
    return _Summed.apply(weight, total), weight.detach().to(dtype), total


def _dtype_of_pass(weight: Tensor) -> torch.dtype:
    """The dtype of a product with a weight, with or without autocast."""
    kind = weight.device.type
    # Autocast does not exist on the meta device, on which memory estimates run.
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return weight.dtype


@torch.enable_grad()
def with_logits(loaded: Pretrained) -> Pretrained:
    """The same. Raises WrongOutput unless a forward pass gives logits, with a gradient."""
    model = loaded.model
    out = model(input_ids=torch.zeros(1, 2, dtype=torch.int64, device=model.device))
    logits = out.get("logits") if isinstance(out, Mapping) else None
    want = [1, 2, vocabulary_of(model)]
    shaped = isinstance(logits, Tensor) and [*logits.shape] == want
    if not shaped or not logits.is_floating_point():
        made = out if logits is None else logits
        raise wrong_value(type(model).forward, made, f"a CausalLMOutput with float logits {want}")
    if not logits.requires_grad and any(weight.requires_grad for weight in model.parameters()):
        raise wrong_value(type(model).forward, logits, "logits with their gradient")
    return loaded


@torch.no_grad()
def logits_are_head_of_trunk(model: nn.Module) -> bool:
    """Whether logits are exactly head(trunk): no scale, no cap. Assumed of a model without weights,
    until the first rank says what it found."""
    trunk, head = model.get_decoder(), model.get_output_embeddings()
    if trunk in (model, head) or head is None:  # a decoder may be the last layer of a masked head
        return False
    if head.weight.is_meta:
        return True
    calls: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {trunk: [], head: []}

    def watch(module: nn.Module, given: tuple, out: Tensor | Mapping[str, Tensor]) -> None:
        result = out if isinstance(out, Tensor) else out["last_hidden_state"]
        calls[module].append((given, result))

    hooks = [module.register_forward_hook(watch) for module in calls]
    tokens = torch.arange(12, device=head.weight.device)[None] % head.weight.shape[0]
    with without_flash_attention(model):
        logits = model(input_ids=tokens, use_cache=False).logits
    for hook in hooks:
        hook.remove()
    if [len(seen) for seen in calls.values()] != [1, 1]:
        return False
    (_, states), ((read,), made) = calls[trunk][0], calls[head][0]
    return torch.equal(read, states) and torch.equal(made.float(), logits.float())
