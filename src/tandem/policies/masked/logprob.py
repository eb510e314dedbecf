"""Training forward of a masked-diffusion model: values of the tokens of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from tandem.contracts import numbers_of
from tandem.experience import Budget
from tandem.policies.language.chunked_head import logits_are_head_of_trunk
from tandem.policies.language.inputs import TEXTS, Layout, RowScorer, TokenIndex, Trunk
from tandem.policies.language.logprob import ChunkLimits, token_logp
from tandem.policies.language.pretrained import Numerics
from tandem.policies.masked.records import HiddenRows, Likelihood, MaskedSample, States
from tandem.policies.weights import Precision, Replicated
from tandem.types import Evidence, take


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskTokens:
    """How a model reads and writes masked tokens."""

    mask: int  # id of the mask token
    banned: tuple[int, ...]  # ids that no answer contains, including the mask
    shift: int = 0  # columns between a token's logits and the token after them


class MaskedModel:
    """The forward pass of a bidirectional model, and logits at single positions."""

    def __init__(self, model: nn.Module, numerics: Numerics, tokens: MaskTokens) -> None:
        self.model, self.tokens = model, tokens
        self.splits = logits_are_head_of_trunk(model)
        self.trunk = Trunk(model.get_decoder() if self.splits else model, numerics)
        self.head = model.get_output_embeddings() if self.splits else nn.Identity()
        self.vocabulary = model.get_output_embeddings().weight.shape[0]

    @property
    def banned_ids(self) -> Tensor:
        return torch.tensor(self.tokens.banned, device=next(self.model.parameters()).device)

    def states(self, tokens: Tensor, read: Tensor) -> Tensor:
        """Final hidden states of the columns of the longest row, [N, W, H] (logits for a model
        that is not a head on a trunk). tokens [N, S], of which `read` [N] are used."""
        tokens = tokens[:, : int(read.max())]  # S is the width of the whole sample
        column = torch.arange(tokens.shape[1], device=tokens.device)
        mask = (column < read[:, None]).long()
        start = torch.arange(len(tokens), device=tokens.device) * tokens.shape[1]
        out = self.trunk(Layout(tokens=tokens, start=start, mask=mask))
        return out.last_hidden_state if self.splits else out.logits

    def states_at(self, tokens: Tensor, read: Tensor, row: Tensor, column: Tensor) -> Tensor:
        """Inputs of the head for the logits of the tokens at (row, column), [n, H]; tokens [N, S].

        On the CPU, identical rows are read once, such as the fully masked answers of a group. On
        an accelerator, finding them would cost a synchronisation.
        """
        if tokens.device.type != "cpu":
            return self.states(tokens, read)[row, column - self.tokens.shift]
        rows, which = torch.cat([tokens, read[:, None]], 1).unique(dim=0, return_inverse=True)
        states = self.states(rows[:, :-1], rows[:, -1])
        return states[which[row], column - self.tokens.shift]


class MaskedLogProbComputer(MaskedModel, RowScorer[MaskedSample]):
    """Values of the tokens of answers, at the states that a likelihood chooses."""

    packs = False
    inputs = TEXTS

    def __init__(
        self,
        model: nn.Module,
        *,
        numerics: Numerics,
        memory: ChunkLimits,
        precision: Precision,
        tokens: MaskTokens,
        evidence: Likelihood,
    ) -> None:
        super().__init__(model, numerics, tokens)
        self.memory, self.precision, self.ask = memory, precision, evidence
        self.beta = numbers_of(evidence).get("beta")
        self.weights = Replicated()

    def __call__(
        self, sample: MaskedSample, mask: Tensor, needs: frozenset[str] = frozenset()
    ) -> Evidence:
        """`mask`: [B, T]; T is at most the number of positions of an answer."""
        return Evidence(**self.weights(partial(self.score, sample, mask, needs)))

    def score(self, sample: MaskedSample, mask: Tensor, needs: frozenset[str]) -> dict[str, Tensor]:
        """name -> [B, T], 0 outside the mask."""
        rows = HiddenRows.of(sample, mask)
        states = self.ask(rows)
        if len(states.row) == 0:  # an empty pass, because other ranks wait for this one
            states = idle(rows)
        found = self.at_states(sample, states, needs)
        values = {name: states.values(x, len(mask)) for name, x in found.items()}
        if "upper_logp" in needs:
            values["upper_logp"] = states.upper_values(found["logp"], rows.free, beta=self.beta)
        return {name: torch.where(mask, x[:, : mask.shape[1]], 0) for name, x in values.items()}

    def at_states(
        self, sample: MaskedSample, states: States, needs: frozenset[str]
    ) -> Mapping[str, Tensor]:
        """Values of the positions that each state scores, [N, L]; 0 elsewhere."""
        seen = take(sample, states.row)
        places = TokenIndex.of(seen, states.weight != 0)
        read = seen.prompt_length + states.hidden.shape[1]
        shown = hide(seen, states, self.tokens.mask)
        also = [name for name in ("entropy", "likeliest") if name in needs]
        with self.precision.on(shown.device):
            numbers = token_logp(
                self.states_at(shown, read, places.row, places.column),
                self.head,
                places,
                vocabulary=self.vocabulary,
                logit_budget=self.memory.logits,
                also=also,
                banned=self.tokens.banned,
            )
        blank = torch.zeros_like(states.weight)
        where = (places.row, places.step)
        return {n: blank.to(x.dtype).index_put(where, x) for n, x in numbers.items()}

    def cut(self, sample: MaskedSample, mask: Tensor) -> list[Tensor]:
        """The rows of each pass without gradient, balanced by the tokens that it reads.

        `mask`: [B, T]; [n] of each.
        """
        return Budget(max_tokens=self.memory.tokens).cut(self.cost(sample, mask))

    def cost(self, sample: MaskedSample, mask: Tensor) -> Tensor:
        """Tokens that the passes of each row read, [B] int64."""
        passes = torch.bincount(self.ask(HiddenRows.of(sample, mask)).row, minlength=len(mask))
        return (sample.prompt_length + sample.when.shape[1]) * passes.clamp(min=1)


def hide(seen: MaskedSample, states: States, mask: int) -> Tensor:
    """Token rows of the states, with the mask token at hidden positions, [N, S]."""
    position = torch.arange(states.hidden.shape[1], device=seen.tokens.device)
    covered = torch.zeros_like(seen.tokens, dtype=torch.bool)
    covered.scatter_(1, seen.prompt_length[:, None] + position, states.hidden)
    if states.prompt is not None:
        covered |= states.prompt
    return seen.tokens.masked_fill(covered, mask)


def idle(rows: HiddenRows) -> States:
    """The first row with its whole answer hidden and nothing scored."""
    hidden = torch.ones_like(rows.free[:1])
    none = torch.zeros_like(hidden, dtype=torch.float64)
    return States(row=torch.zeros(1).long().to(hidden.device), hidden=hidden, weight=none, count=1)
