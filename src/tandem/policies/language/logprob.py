"""The training forward of one network: what its weights say of tokens that were taken."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from tandem.budget import Budget
from tandem.policies.language.critic import Critic
from tandem.policies.language.decoding import arguments
from tandem.policies.language.packing import (
    Layout,
    LayoutFn,
    keeps_rows_apart,
    packed,
    packed_in_one,
    padded,
)
from tandem.policies.language.pretrained import Numerics, probed
from tandem.policies.language.records import TokenSample
from tandem.policies.language.vocabulary import ALSO, TokenIndex, token_logp
from tandem.policies.weights import Precision, Replicated
from tandem.types import Evidence, concat, take


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkLimits:
    """What a pass may hold at once; no result depends on it beyond rounding."""

    logits: int = 2**24  # float32 elements of one chunk of the head
    tokens: int = 2**14  # of one pass without gradient


class Trunk:
    """The layers of a causal language model, without its head."""

    def __init__(self, layers: nn.Module, numerics: Numerics) -> None:
        self.layers, self.checkpoints = layers, numerics.gradient_checkpointing
        self.run = torch.compile(layers, dynamic=True) if numerics.torch_compile else layers

    def __call__(self, layout: Layout) -> Mapping[str, Tensor]:
        if self.checkpoints:
            # Activations are recomputed in train mode only, and sampling must never be in it.
            self.layers.train(torch.is_grad_enabled())
        where = {} if layout.position is None else {"position_ids": layout.position}
        out = self.run(input_ids=layout.tokens, use_cache=False, **where)
        if self.checkpoints:
            self.layers.eval()
        return out


class TokenLogProbComputer:
    """Log-probabilities of taken tokens under a causal language model, and a critic's values."""

    def __init__(
        self,
        model: nn.Module,
        *,
        numerics: Numerics,
        memory: ChunkLimits,
        precision: Precision,
        critic: Critic | None = None,
    ) -> None:
        self.model, self.numerics, self.memory = model, numerics, memory
        self.precision = precision
        self.splits = logits_are_head_of_trunk(model)
        # Called below the adapters' wrapper: they live inside the layers.
        self.trunk = Trunk(model.get_decoder() if self.splits else model, numerics)
        self.critic = critic
        apart = critic is not None and critic.layers is not None
        self.own_trunk = Trunk(critic.layers, numerics) if apart else None
        self.lay = self.layout_of_rows()
        self.weights = Replicated()

    @property
    def packs(self) -> bool:
        """Whether rows share a row of the pass, and none of it is padding but a little."""
        return self.lay is not padded

    def __call__(
        self, sample: TokenSample, mask: Tensor, needs: frozenset[str] = frozenset()
    ) -> Evidence:
        """Rows may hold anything right of their last masked token: attention looks left only."""
        # One call of everything: trunk and head may share weights.
        with self.precision.on(mask.device):
            return Evidence(**self.weights(partial(self.said, sample, mask, needs)))

    def said(self, sample: TokenSample, mask: Tensor, needs: frozenset[str]) -> dict[str, Tensor]:
        """name -> [B, T], 0 outside the mask."""
        places = TokenIndex.of(sample, mask)
        layout = self.lay(sample.tokens, places.read(len(mask)))
        states = places.gather(self.forward(layout), layout.start)
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
            numbers["values"] = self.values(places, layout, states)
        return {name: places.scatter(x, mask) for name, x in numbers.items()}

    def forward(self, layout: Layout) -> Tensor:
        """Hidden states [R, S, H], or logits [R, S, V] of a model that does more after its head."""
        out = self.trunk(layout)
        return out.last_hidden_state if self.splits else out.logits

    def values(self, places: TokenIndex, layout: Layout, states: Tensor) -> Tensor:
        """What the critic expects of each step, from what stands before its token: [N]."""
        if self.own_trunk is not None:
            states = places.gather(self.own_trunk(layout).last_hidden_state, layout.start)
        return self.critic(states)

    def layout_of_rows(self) -> LayoutFn:
        """How rows are laid out for good: packed only if the network keeps packed rows apart."""
        asked = self.numerics.packing
        if asked is False:
            return padded
        if "position_ids" in arguments(type(self.trunk.layers)) and self._keeps_rows_apart():
            return packed_in_one if self.numerics.flash else packed
        reason = (
            f"{type(self.model).__name__} does not keep apart rows that share a pass, as its "
            "attention ignores where a row begins, or it remembers in another way"
        )
        if asked is True:
            raise ValueError(f"model.packing=true: {reason}; set model.packing=false")
        warnings.warn(f"model.packing={asked}: {reason}; they are padded", stacklevel=2)
        return padded

    def _keeps_rows_apart(self) -> bool:
        embeddings = self.model.get_input_embeddings().weight
        with probed(self.model):
            return keeps_rows_apart(self.forward, len(embeddings), embeddings)

    @torch.no_grad()
    def in_parts(
        self, sample: TokenSample, mask: Tensor, needs: frozenset[str] = frozenset()
    ) -> Evidence:
        """The same without gradient, a few rows at a time."""
        budget = Budget(max_tokens=self.memory.tokens, packed=self.packs)
        parts = budget.cut(TokenIndex.of(sample, mask).read(len(mask)).clamp(min=1))
        if len(parts) <= 1:
            return self(sample, mask, needs)
        said = [self(take(sample, part), mask[part.to(mask.device)], needs) for part in parts]
        return take(concat(said), torch.cat(parts).argsort())


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
