"""The training forward of one network: what its weights say of tokens that were taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tandem.policies.logprobs import Places, token_logp
from tandem.policies.pretrained import Numerics
from tandem.policies.records import TokenSample
from tandem.types import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a pass may hold at once; no result depends on it beyond rounding."""

    logits: int = 2**24  # float32 elements of one chunk of the head
    tokens: int = 2**14  # of one pass without gradient: rows times the longest


class Scorer:
    """Log-probabilities of taken tokens under a causal language model."""

    def __init__(self, model: nn.Module, *, numerics: Numerics, memory: Memory) -> None:
        self.model, self.numerics, self.memory = model, numerics, memory
        self.splits = logits_are_head_of_trunk(model)
        # Called below the adapters' wrapper: they live inside the layers.
        trunk = model.get_decoder() if self.splits else model
        self.trunk = torch.compile(trunk, dynamic=True) if numerics.torch_compile else trunk

    def __call__(self, sample: TokenSample, mask: Tensor, *, with_entropy: bool) -> Evidence:
        """Rows may hold anything right of their last masked token: attention looks left only."""
        places = Places.of(sample, mask)
        states = places.gather(self.forward(sample.tokens[:, : places.width]))
        head = self.model.get_output_embeddings() if self.splits else nn.Identity()
        vocabulary = head.weight.shape[0] if self.splits else states.shape[-1]
        logp, entropy = token_logp(
            states,
            head,
            places,
            vocabulary=vocabulary,
            logit_budget=self.memory.logits,
            with_entropy=with_entropy,
        )
        scattered = None if entropy is None else places.scatter(entropy, mask)
        return Evidence(logp=places.scatter(logp, mask), entropy=scattered)

    def forward(self, tokens: Tensor) -> Tensor:
        """Hidden states [B, S, H], or logits [B, S, V] of a model that does more after its head."""
        if self.numerics.gradient_checkpointing:
            # Activations are recomputed in train mode only, and sampling must never be in it.
            self.model.train(torch.is_grad_enabled())
        out = self.trunk(input_ids=tokens, use_cache=False)
        if self.numerics.gradient_checkpointing:
            self.model.eval()
        return out.last_hidden_state if self.splits else out.logits

    @torch.no_grad()
    def in_parts(self, sample: TokenSample, mask: Tensor) -> Tensor:
        """Log-probabilities [B, T] without gradient, a few rows at a time."""
        columns = (sample.tokens, sample.prompt_length, sample.temperature, mask)
        rows = max(self.memory.tokens // max(sample.tokens.shape[1], 1), 1)
        parts = []
        for tokens, length, temperature, part in zip(
            *(c.split(rows) for c in columns), strict=True
        ):
            cut = TokenSample(tokens=tokens, prompt_length=length, temperature=temperature)
            parts.append(self(cut, part, with_entropy=False).logp)
        return torch.cat(parts)


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
    logits = model(input_ids=tokens, use_cache=False).logits
    for hook in hooks:
        hook.remove()
    if [len(seen) for seen in calls.values()] != [1, 1]:
        return False
    (_, states), ((read,), made) = calls[trunk][0], calls[head][0]
    return torch.equal(read, states) and torch.equal(made.float(), logits.float())
