"""Unmasking of answers: each step is a pass that draws a candidate for every hidden position and
writes the first ones of an order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem import rng
from tandem.policies.language.logprob import ChunkLimits
from tandem.policies.language.sampling import cuts, draw, right_padded
from tandem.policies.masked.logprob import MaskedModel
from tandem.policies.masked.orders import ORDERS, count_accepted, pick_first, spread_evenly
from tandem.policies.masked.records import MaskedSampling
from tandem.policies.weights import Precision
from tandem.progress import PROGRESS
from tandem.types import concat, widen


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmasked:
    """Answers of L positions."""

    tokens: Tensor  # [B, L] int64
    when: Tensor  # [B, L] int64 step that wrote the position
    logp: Tensor  # [B, L] nats, at the step that wrote it
    entropy: Tensor  # [B, L] nats of the distribution it was drawn from


class Unmasker:
    """The engine of masked-diffusion text: it samples with the weights that are trained."""

    def __init__(self, model: MaskedModel, memory: ChunkLimits, precision: Precision) -> None:
        self.model, self.memory, self.precision = model, memory, precision

    @torch.no_grad()
    def answer(
        self, prompts: Sequence[list[int]], keys: Tensor, sampling: MaskedSampling
    ) -> Unmasked:
        """keys.shape[1] answers to every prompt, prompt by prompt. keys: [P, G] int64.

        A draw is keyed by its row, position, step and token id, so neither cuts nor other rows
        change a token.
        """
        with self.precision.on(keys.device):
            return concat(
                [
                    self.answer_pass(prompts[p], keys[p, s], sampling)
                    for p, s in cuts(*keys.shape, max_rows=sampling.max_rows)
                ]
            )

    def answer_pass(
        self, prompts: Sequence[list[int]], keys: Tensor, sampling: MaskedSampling
    ) -> Unmasked:
        """The answers of one pass. keys: [P, G] int64."""
        answers = keys.shape[1]
        page = Page(
            [prompt for prompt in prompts for _ in range(answers)],
            keys.flatten(),
            positions=sampling.max_new_tokens,
            mask=self.model.tokens.mask,
        )
        for step, (block, count) in enumerate(plan(sampling)):
            if not page.hidden[:, block].any():  # finished in fewer steps than planned
                continue
            priority = self.candidates(page, block, step, sampling)
            page.write(self.choose(page, block, priority, count, sampling), step)
            PROGRESS.report()
        return page.answers()

    def candidates(self, page: Page, block: slice, step: int, sampling: MaskedSampling) -> Tensor:
        """Draw a token for every hidden position of a block; return the priorities, [B, L]."""
        inside = torch.zeros_like(page.hidden)
        inside[:, block] = page.hidden[:, block]
        row, position = inside.nonzero(as_tuple=True)
        column = page.prompt_length[row] + position
        states = self.model.states_at(page.tokens, page.read, row, column)
        keys = rng.key(page.keys[row], step, position)
        priority = torch.zeros(page.hidden.shape, dtype=torch.float64, device=page.keys.device)
        for part in torch.arange(len(row)).split(
            max(self.memory.logits // self.model.vocabulary, 1)
        ):
            part = part.to(row.device)
            logits = widen(self.model.head(states[part]))
            logits = logits.index_fill(-1, self.model.banned_ids, -torch.inf)
            drawn = draw(logits, keys[part], sampling)
            at = row[part], position[part]
            page.token[at], page.logp[at] = drawn.token, drawn.logp.float()
            page.entropy[at] = drawn.entropy.float()
            order = ORDERS[sampling.unmask_order].priority
            fixed = rng.key(page.keys[row[part]], "order", position[part])
            priority[at] = order(logits.log_softmax(-1), drawn.token, fixed).double()
        return priority

    def choose(
        self,
        page: Page,
        block: slice,
        priority: Tensor,
        count: int,
        sampling: MaskedSampling,
    ) -> Tensor:
        """The positions that a step writes, [B, L] bool."""
        hidden = torch.zeros_like(page.hidden)
        hidden[:, block] = page.hidden[:, block]
        counts = torch.full((len(hidden),), count, device=hidden.device)
        if sampling.entropy_bound is not None:
            entropy = page.entropy.double().masked_fill(~hidden, torch.inf)
            ascending = entropy.sort(-1).values
            accepted = count_accepted(ascending.nan_to_num(posinf=1e9), sampling.entropy_bound)
            priority, counts = -entropy, accepted
        return pick_first(priority, hidden, counts)


def plan(sampling: MaskedSampling) -> Iterator[tuple[slice, int]]:
    """The block of each step, and the number of positions that it writes."""
    blocks = sampling.max_new_tokens // sampling.block
    steps = sampling.block if sampling.entropy_bound is not None else sampling.total_steps // blocks
    for start in range(0, sampling.max_new_tokens, sampling.block):
        for count in spread_evenly(sampling.block, steps):
            yield slice(start, start + sampling.block), count


class Page:
    """Partly written answers, with their prompts."""

    def __init__(
        self, prompts: Sequence[list[int]], keys: Tensor, *, positions: int, mask: int
    ) -> None:
        device, rows = keys.device, len(prompts)
        self.keys = keys
        self.prompt_length = torch.tensor([len(p) for p in prompts], device=device)
        self.read = self.prompt_length + positions
        tokens = torch.nn.functional.pad(right_padded(prompts, device), (0, positions))
        self.columns = self.prompt_length[:, None] + torch.arange(positions, device=device)
        self.tokens = tokens.scatter(1, self.columns, mask)
        self.hidden = torch.ones(rows, positions, dtype=torch.bool, device=device)
        self.token, self.when = (torch.zeros_like(self.columns) for _ in range(2))
        self.logp, self.entropy = (torch.zeros(rows, positions, device=device) for _ in range(2))

    def write(self, chosen: Tensor, step: int) -> None:
        """Write the candidates of these positions. `chosen`: [B, L] bool."""
        seen = torch.where(chosen, self.token, self.tokens.gather(1, self.columns))
        self.tokens.scatter_(1, self.columns, seen)
        self.when[chosen] = step
        self.hidden &= ~chosen

    def answers(self) -> Unmasked:
        """The finished answers."""
        return Unmasked(tokens=self.token, when=self.when, logp=self.logp, entropy=self.entropy)
