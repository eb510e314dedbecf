"""The training forward of one network: what its weights say of tokens that were taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tandem.policies.critic import Critic
from tandem.policies.logprobs import ALSO, Places, token_logp
from tandem.policies.pretrained import Numerics
from tandem.policies.records import TokenSample
from tandem.types import Evidence, concat


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a pass may hold at once; no result depends on it beyond rounding."""

    logits: int = 2**24  # float32 elements of one chunk of the head
    tokens: int = 2**14  # of one pass without gradient: rows times the longest


class Trunk:
    """The layers of a causal language model, without its head."""

    def __init__(self, layers: nn.Module, numerics: Numerics) -> None:
        self.layers, self.checkpoints = layers, numerics.gradient_checkpointing
        self.run = torch.compile(layers, dynamic=True) if numerics.torch_compile else layers

    def __call__(self, tokens: Tensor) -> Mapping[str, Tensor]:
        if self.checkpoints:
            # Activations are recomputed in train mode only, and sampling must never be in it.
            self.layers.train(torch.is_grad_enabled())
        out = self.run(input_ids=tokens, use_cache=False)
        if self.checkpoints:
            self.layers.eval()
        return out


class Scorer:
    """Log-probabilities of taken tokens under a causal language model, and a critic's values."""

    def __init__(
        self,
        model: nn.Module,
        *,
        numerics: Numerics,
        memory: Memory,
        critic: Critic | None = None,
    ) -> None:
        self.model, self.numerics, self.memory = model, numerics, memory
        self.splits = logits_are_head_of_trunk(model)
        # Called below the adapters' wrapper: they live inside the layers.
        self.trunk = Trunk(model.get_decoder() if self.splits else model, numerics)
        self.critic = critic
        apart = critic is not None and critic.layers is not None
        self.own_trunk = Trunk(critic.layers, numerics) if apart else None

    def __call__(
        self, sample: TokenSample, mask: Tensor, needs: frozenset[str] = frozenset()
    ) -> Evidence:
        """Rows may hold anything right of their last masked token: attention looks left only."""
        places = Places.of(sample, mask)
        tokens = sample.tokens[:, : places.width]
        states = places.gather(self.forward(tokens))
        head = self.model.get_output_embeddings() if self.splits else nn.Identity()
        numbers = token_logp(
            states,
            head,
            places,
            vocabulary=head.weight.shape[0] if self.splits else states.shape[-1],
            logit_budget=self.memory.logits,
            also=[name for name in ALSO if name in needs],
        )
        if "values" in needs:
            numbers["values"] = self.values(places, tokens, states)
        return Evidence(**{name: places.scatter(x, mask) for name, x in numbers.items()})

    def forward(self, tokens: Tensor) -> Tensor:
        """Hidden states [B, S, H], or logits [B, S, V] of a model that does more after its head."""
        out = self.trunk(tokens)
        return out.last_hidden_state if self.splits else out.logits

    def values(self, places: Places, tokens: Tensor, states: Tensor) -> Tensor:
        """What the critic expects of each step, from what stands before its token: [N]."""
        if self.own_trunk is not None:
            states = places.gather(self.own_trunk(tokens).last_hidden_state)
        return self.critic(states)

    @torch.no_grad()
    def in_parts(
        self, sample: TokenSample, mask: Tensor, needs: frozenset[str] = frozenset()
    ) -> Evidence:
        """The same without gradient, a few rows at a time."""
        columns = (sample.tokens, sample.prompt_length, sample.temperature, mask)
        rows = max(self.memory.tokens // max(sample.tokens.shape[1], 1), 1)
        parts = []
        for tokens, length, temperature, part in zip(
            *(c.split(rows) for c in columns), strict=True
        ):
            cut = TokenSample(tokens=tokens, prompt_length=length, temperature=temperature)
            parts.append(self(cut, part, needs))
        return concat(parts)


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
