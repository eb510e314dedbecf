"""Rows of paged sampling: requests to transformers' scheduler, and the drawn tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchProcessor
from transformers.generation.continuous_batching.requests import RequestState, RequestStatus

from tandem import rng
from tandem.policies.language.records import Answers, Endings, Sampling
from tandem.policies.language.sampling import draw


class PagedRows:
    """Rows in progress and the tokens drawn for them."""

    def __init__(
        self, prompts: Sequence[list[int]], keys: Tensor, sampling: Sampling, endings: Endings
    ) -> None:
        """keys: [P, G] int64."""
        self.sampling, self.endings, self.group_size = sampling, endings, keys.shape[1]
        self.prompts = [prompt for prompt in prompts for _ in range(self.group_size)]
        self.keys = keys.flatten()
        size, steps, device = len(self.keys), sampling.max_new_tokens, keys.device
        self.tokens = torch.zeros(size, steps, dtype=torch.int64, device=device)
        self.logp, self.entropy = (torch.zeros(size, steps, device=device) for _ in range(2))
        self.length = torch.zeros_like(self.keys)
        self.stopped = torch.zeros_like(self.keys, dtype=torch.bool)  # by a stop string
        # Of one pass, in the order of its rows; a captured graph reads and writes these buffers.
        self.noise = torch.zeros_like(self.keys)
        self.drawn = torch.zeros(2, size, device=device)  # logp and entropy

    @property
    def longest_prompt(self) -> int:
        return max(map(len, self.prompts))

    def sample(
        self, processor: ContinuousBatchProcessor, model: PreTrainedModel, *, shared: bool
    ) -> None:
        """Sample all rows. shared: the other rows of a group wait until its first one has read the
        prompt, and share the pages that are full by then."""
        size = len(self.keys)
        for row in range(0, size, self.group_size) if shared else range(size):
            processor.scheduler.add_waiting_request(self.request(row))
        while processor.has_pending_requests():
            begun = self.step(processor, model)
            firsts = [row for row in begun if shared and row % self.group_size == 0]
            for other in (first + place for first in firsts for place in range(1, self.group_size)):
                processor.scheduler.add_waiting_request(self.request(other))

    def request(self, row: int) -> RequestState:
        return RequestState(
            request_id=str(row),
            initial_tokens=self.prompts[row],
            max_new_tokens=self.sampling.max_new_tokens,
            eos_token_id=list(self.endings.tokens),
        )

    def step(self, processor: ContinuousBatchProcessor, model: PreTrainedModel) -> list[int]:
        """One pass: the next token of the rows that fit. Returns the rows that started."""
        if not processor.prepare_next_batch():
            raise RuntimeError("the paged cache has no room for a row; raise rollout.engine.memory")
        batch = processor.inputs_and_outputs.requests_in_batch
        states = [one.state for one in batch if one.has_new_token]  # others still read prompts
        rows = [int(state.request_id) for state in states]
        # An evicted row has its answer so far in its prompt, but its position is right.
        places = [
            s.position_offset - len(self.prompts[r]) for s, r in zip(states, rows, strict=True)
        ]
        row, place = (self.keys.new_tensor(x) for x in (rows, places))  # int64, even of none
        self.noise[: len(rows)] = rng.key(self.keys[row], place)
        if (stream := processor.inputs_and_outputs.compute_stream) is not None:
            stream.wait_stream(torch.get_device_module(stream.device).current_stream(stream.device))
        processor._generation_step(model)
        processor.update_batch()
        self.keep(processor.inputs_and_outputs.output_ids[0, : len(rows)], row, place)
        for state in states if self.endings.strings else ():
            if self.stopped[int(state.request_id)] and state.status != RequestStatus.FINISHED:
                state.status = RequestStatus.FINISHED
                processor.scheduler.finish_request(state.request_id)
        return [r for r, p in zip(rows, places, strict=True) if p == 0]

    def draw(self, scores: Tensor, output_ids: Tensor) -> None:
        """A token for each row of a pass, in place of the one that transformers would draw: logits
        [1, N, V] -> output_ids [2, M]."""
        count = scores.shape[1]
        drawn = draw(scores[0], self.noise[:count], self.sampling)
        output_ids[0, :count].copy_(drawn.token)
        self.drawn[0, :count].copy_(drawn.logp)
        self.drawn[1, :count].copy_(drawn.entropy)

    def keep(self, token: Tensor, row: Tensor, place: Tensor) -> None:
        """Store the tokens that a pass drew, [N] each, in their rows."""
        self.tokens[row, place] = token.long()
        self.logp[row, place], self.entropy[row, place] = self.drawn[:, : len(row)]
        self.length[row] = place + 1
        if self.endings.strings:
            self.stopped[row] = self.find_stopped(row, place)

    def find_stopped(self, row: Tensor, place: Tensor) -> Tensor:
        """Whether these rows end with a stop string: [N] bool."""
        tail = self.endings.tail
        window = place[:, None] + torch.arange(1 - tail, 1, device=place.device)
        written = self.tokens[row[:, None], window.clamp(min=0)].tolist()
        count = (place + 1).clamp(max=tail).tolist()
        tails = [ids[-n:] for ids, n in zip(written, count, strict=True)]
        return self.endings.hold_string(tails, row.device)

    def answers(self) -> Answers:
        last = self.tokens.gather(1, self.length[:, None] - 1)
        ends = torch.tensor(self.endings.tokens, dtype=last.dtype, device=last.device)
        ended = (last == ends).any(1) | self.stopped
        longest = int(self.length.max())
        return Answers(
            tokens=self.tokens[:, :longest],
            logp=self.logp[:, :longest],
            entropy=self.entropy[:, :longest],
            length=self.length,
            truncated=~ended,
        )
