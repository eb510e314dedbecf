"""Log-probabilities of sampled tokens: the training forward of one network.

[B, T, V] never exists in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tandem import distributed
from tandem.experience import Budget
from tandem.policies.language.chunked_head import for_chunks, logits_are_head_of_trunk
from tandem.policies.language.compared import Compared, by_teacher
from tandem.policies.language.contexts import padded_cost, split_contexts
from tandem.policies.language.critic import Critic
from tandem.policies.language.inputs import (
    TEXTS,
    Inputs,
    Layout,
    RowScorer,
    TokenIndex,
    Trunk,
    find_alike,
    pad_rows,
)
from tandem.policies.language.layout_probes import choose_layout, shares_prompts
from tandem.policies.language.prefix import share_prompts
from tandem.policies.language.pretrained import Numerics, vocabulary_of
from tandem.policies.language.records import TokenSample
from tandem.policies.language.sampling import entropy_of
from tandem.policies.weights import Precision, Replicated, join_graph
from tandem.types import Evidence, take, widen

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkLimits:
    """Memory limits of a pass; results depend on them only by rounding."""

    logits: int = 2**26  # float32 elements per chunk of the head
    tokens: int = 2**14  # per pass without gradient


class TokenLogProbComputer(RowScorer[TokenSample]):
    """Log-probabilities of sampled tokens under a causal language model, and a critic's values."""

    def __init__(
        self,
        model: nn.Module,
        *,
        numerics: Numerics,
        memory: ChunkLimits,
        precision: Precision,
        critic: Critic | None = None,
        inputs: Inputs = TEXTS,
    ) -> None:
        """inputs: arguments of the network besides tokens."""
        self.model, self.numerics, self.memory = model, numerics, memory
        self.precision, self.inputs = precision, inputs
        self.split(logits_are_head_of_trunk(model))
        self.critic = critic
        has_trunk = critic is not None and critic.layers is not None
        self.own_trunk = Trunk(critic.layers, numerics) if has_trunk else None
        asked = model, self.trunk.layers, self.forward, numerics, self.inputs
        self.lay = choose_layout(*asked)
        # Whether a pass has several rows per row, with little padding.
        self.packs = self.lay is not pad_rows
        self.shares = shares_prompts(*asked)
        self.weights = Replicated()

    def split(self, splits: bool) -> None:
        """`splits`: whether trunk and head of the network can be called one after the other."""
        model, self.splits = self.model, splits
        # Hidden states [N, H] to logits [N, V].
        self.head = model.get_output_embeddings() if splits else nn.Identity()
        self.vocabulary = self.head.weight.shape[0] if splits else vocabulary_of(model)
        # Called below the adapters' wrapper, since adapters are inside the layers.
        self.trunk = Trunk(self.inputs.layers(model) if splits else model, self.numerics)

    def shard(self, networks: Sequence[nn.Module], mesh: DeviceMesh) -> None:
        super().shard(networks, mesh)
        own = self.splits, self.lay, self.shares
        splits, self.lay, self.shares = distributed.all_gather_object([own])[0]
        self.split(splits)
        self.packs = self.lay is not pad_rows

    def __call__(
        self,
        sample: TokenSample,
        mask: Tensor,
        needs: frozenset[str] = frozenset(),
        compared: Sequence[Compared] = (),
    ) -> Evidence:
        """The log-probability of each masked token, [B, T] nats, and what else is in `needs`.
        Rows may hold anything after their last masked token; identical rows are read once.

        compared: teachers' values of these steps, if a "divergence" is needed.
        """
        alike = None if compared else find_alike(sample, mask)
        if alike is not None:
            sample, mask = take(sample, alike[0]), mask[alike[0]]
        # One call for everything: trunk and head may share weights.
        with self.precision.on(mask.device):
            said = Evidence(**self.weights(partial(self.score, sample, mask, needs, compared)))
        return said if alike is None else take(said, alike[1])

    def score(
        self,
        sample: TokenSample,
        mask: Tensor,
        needs: frozenset[str],
        compared: Sequence[Compared] = (),
    ) -> dict[str, Tensor]:
        """name -> [B, T], 0 outside the mask."""
        places = TokenIndex.of(sample, mask)
        where = places.row, places.step
        if sample.context is not None:
            sample, places = split_contexts(sample, places)
        layout = self.layout_of(sample, places.read(len(sample.tokens)))
        states = places.gather(self.forward(layout), layout.start)
        read = partial(
            token_logp,
            head=self.head,
            vocabulary=self.vocabulary,
            logit_budget=self.memory.logits,
            also=[name for name in ALSO if name in needs],
            banned=self.inputs.banned,
        )
        taught = "divergence" in needs
        numbers = (
            by_teacher(read, states, places, compared) if taught else read(states, places=places)
        )
        if "values" in needs:
            numbers["values"] = self.values(places, layout, states)
        blank = torch.zeros_like(mask)
        return {n: blank.to(x.dtype).index_put(where, x) for n, x in numbers.items()}

    def layout_of(self, sample: TokenSample, read: Tensor) -> Layout:
        """Rows after shared prompts if that saves tokens, else the usual layout. read: [B].

        Not with sharded weights: other ranks might not make the additional pass.
        """
        behind = share_prompts(sample, read) if self.shares and not self.weights.lockstep else None
        layout = self.lay(sample.tokens, read) if behind is None else behind
        return self.inputs.lay(layout, sample, read)

    def forward(self, layout: Layout) -> Tensor:
        """Hidden states [R, S, H]; logits [R, S, V] if the model transforms its head's output."""
        out = self.trunk(layout)
        states = out.last_hidden_state if self.splits else out.logits
        return join_graph(states, self.inputs.tied) if self.inputs.tied else states

    def values(self, places: TokenIndex, layout: Layout, states: Tensor) -> Tensor:
        """The critic's value of each step, from the state before its token: [N]."""
        if self.own_trunk is not None:
            states = places.gather(self.own_trunk(layout).last_hidden_state, layout.start)
        return self.critic(states)

    @torch.no_grad()
    def states(self, sample: TokenSample, mask: Tensor) -> Tensor:
        """Inputs of the head at each step of a mask [B, T], in row order, with a few rows per
        pass: [N, H]."""
        found, order, number = [], [], mask.flatten().cumsum(0).view(mask.shape) - 1
        for part in self.cut(sample, mask):
            own, inside = take(sample, part), mask[part.to(mask.device)]
            places = TokenIndex.of(own, inside)
            if own.context is not None:
                own, places = split_contexts(own, places)
            layout = self.layout_of(own, places.read(len(own.tokens)))
            with self.precision.on(mask.device):
                found.append(places.gather(self.forward(layout), layout.start))
            order.append(number[part.to(mask.device)][inside])
        return torch.cat(found)[torch.cat(order).argsort()]

    def cut(self, sample: TokenSample, mask: Tensor) -> list[Tensor]:
        """The rows of each pass without gradient, balanced by the tokens that it reads.

        `mask`: [B, T]; [n] of each.
        """
        places = TokenIndex.of(sample, mask)
        of_rows = sample.context is None or self.packs
        cost = places.read(len(mask)) if of_rows else padded_cost(sample, places)
        return Budget(max_tokens=self.memory.tokens, packed=self.packs).cut(cost.clamp(min=1))


# Further values of a step's distribution: (logp [N, V], logp of the token [N]) -> [N].
ALSO: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "entropy": lambda logp, chosen: entropy_of(logp),
    "likeliest": lambda logp, chosen: (chosen >= logp.amax(-1)).to(logp.dtype),
    "sum_pi_squared": lambda logp, chosen: (2 * logp).exp().sum(-1),
}


def token_logp(
    states: Tensor,
    head: Callable[[Tensor], Tensor],
    places: TokenIndex,
    *,
    vocabulary: int,
    logit_budget: int,
    also: Sequence[str],
    banned: Sequence[int] = (),
    beside: Compared | None = None,
) -> dict[str, Tensor]:
    """log softmax(head(states) / temperature)[token] as "logp", and each of `also`: [N].

    `banned`: ids of tokens with probability 0.

    A chunk over N holds at most `logit_budget` logits, and as many of the teacher `beside`, which
    gives the "divergence"; several chunks are recomputed one by one in backward. In nats.
    """
    size = max(logit_budget // vocabulary, 1)
    single = len(states) <= size
    tempered = bool((places.temperature != 1).any())  # once: it synchronises a GPU
    head = head if single else for_chunks(head)
    # Only if there are any: it copies to the device.
    without = torch.tensor(banned, device=states.device) if banned else None

    def of_chunk(
        states: Tensor, token: Tensor, temperature: Tensor, *of_teacher: Tensor
    ) -> Sequence[Tensor]:
        logits = widen(head(states))
        if banned:
            logits = logits.index_fill(-1, without, -torch.inf)
        if tempered:
            logits = logits / temperature[:, None].to(logits.dtype)
        logp = logits.log_softmax(-1)
        chosen = logp.gather(-1, token[:, None])[:, 0]
        divergences = [beside.divergence(logits, x, temperature) for x in of_teacher]
        # Not stacked: a value that no loss reads takes no backward pass.
        return [chosen, *(ALSO[name](logp, chosen) for name in also), *divergences]

    names, columns = ["logp", *also], [states, places.token, places.temperature]
    if beside is not None:
        names.append("divergence")
        columns.append(beside.states)
    run = of_chunk if single else partial(checkpoint, of_chunk, use_reentrant=False)
    chunks = zip(*(column.split(size) for column in columns), strict=True)
    found = zip(*(run(*chunk) for chunk in chunks), strict=True)
    return {name: torch.cat(values) for name, values in zip(names, found, strict=True)}
