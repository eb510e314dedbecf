"""Decoding of answers with a causal language model's key-value cache: the local engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import DynamicLayer

from tandem import rng
from tandem.policies.language.decode_graph import DEVICES, Recorder, can_record
from tandem.policies.language.inputs import TEXTS, Inputs
from tandem.policies.language.pretrained import arguments
from tandem.policies.language.records import Answers, Endings, Sampling
from tandem.policies.language.sampling import Draw, before, cuts, draw
from tandem.policies.weights import FULL, Precision
from tandem.progress import PROGRESS
from tandem.types import concat

COLUMNS = "tokens", "logp", "entropy"  # of answers, one per step
COPY_BELOW = 0.75  # share of rows in use below which compacting the cache pays
COPY_RECORDED_BELOW = 0.5  # the same where the step must be recorded again
ROOM = 64  # columns that are preallocated in a cache; without them, each token copies all of it
# Tokens between two checks for ended rows, which synchronise an accelerator.
LOOK_EVERY = {"cpu": 1}
LOOK_EVERY_ELSEWHERE = 8


class RoomyLayer(DynamicLayer):
    """Keys and values of one layer, [N, heads, tokens, D]: the first columns of `rooms`."""

    def __init__(self, layer: DynamicLayer, room: int) -> None:
        """Takes over the keys and values of a layer."""
        super().__init__()
        self.room = room
        self.lazy_initialization(layer.keys, layer.values)
        kind, dtype = layer.keys.device.type, layer.keys.dtype
        if torch.is_autocast_enabled(kind):  # then attention rounds all of it, at every token
            dtype = torch.get_autocast_dtype(kind)
        self.rooms = self.keys, self.values = layer.keys.to(dtype), layer.values.to(dtype)
        self.column: Tensor | None = None  # [1] int64 where a recorded step writes its token

    def update(self, key_states: Tensor, value_states: Tensor, *_: object) -> tuple[Tensor, Tensor]:
        """Append new columns. A recorded step writes into its column, and reads all rooms."""
        if self.column is not None:
            for room, states in zip(self.rooms, (key_states, value_states), strict=True):
                room.index_copy_(2, self.column, states.to(room.dtype))
            return self.rooms
        known, new = self.get_seq_length(), key_states.shape[2]
        if known + new > self.rooms[0].shape[2]:
            self.rooms = tuple(pad(room, (0, 0, 0, new + self.room)) for room in self.rooms)
        for room, states in zip(self.rooms, (key_states, value_states), strict=True):
            room[:, :, known : known + new] = states
        self.keys, self.values = (room[:, :, : known + new] for room in self.rooms)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep these rows, with their preallocated columns. `beam_idx`: [N] int64."""
        width = self.get_seq_length()
        self.rooms = tuple(room.index_select(0, beam_idx) for room in self.rooms)
        self.keys, self.values = (room[:, :, :width] for room in self.rooms)


class Rows:
    """N unfinished answers, and the rows of the model's cache. On the CPU, answers to a prompt
    share a row as long as they are identical."""

    def __init__(
        self,
        model: nn.Module,
        prompts: Sequence[list[int]],
        keys: Tensor,
        sampling: Sampling,
        inputs: Inputs = TEXTS,
    ) -> None:
        """Reads each prompt in one forward pass, for the answers of keys [P, G]."""
        self.model, self.inputs, self.cache = model, inputs, None
        self.banned = torch.tensor(inputs.banned, dtype=torch.int64, device=keys.device)
        self.keys = keys.flatten()
        self.index = torch.arange(len(self.keys), device=keys.device)  # of the answer
        self.row = self.index // keys.shape[1]  # [N] cache row of each answer
        self.apart = keys.shape[1] == 1  # each answer has its own row, in order
        ids = [torch.tensor(prompt) for prompt in prompts]
        padded = partial(pad_sequence, batch_first=True, padding_side="left")
        tokens = padded(ids).to(keys.device)
        mask = padded([torch.ones_like(own) for own in ids]).to(keys.device)
        self.mask = None if mask.all() else mask  # attention is faster without a mask
        first = inputs.first_pass(prompts, tokens, mask)
        self.position = first.behind  # [N, 1] of the next token, or [4, N, 1]
        logits = self.forward(tokens, first.position, self.mask, **first.more)
        self.logits = logits if self.apart else logits[self.row]  # [N, V]
        steps = sampling.max_new_tokens
        # Other kinds of layers, such as sliding windows, are kept, and so are layers without keys.
        self.cache.layers = [
            RoomyLayer(x, min(steps, ROOM)) if type(x) is DynamicLayer and x.is_initialized else x
            for x in self.cache.layers
        ]
        self.recorder: Recorder | None = None
        roomy = all(type(layer) is RoomyLayer for layer in self.cache.layers)
        graphs = sampling.cuda_graphs and keys.device.type in DEVICES
        if graphs and roomy and can_record(model):
            self.recorder = Recorder(self.cache, most=tokens.shape[1] + steps)

    def forward(
        self, tokens: Tensor, position: Tensor, mask: Tensor | None, **more: object
    ) -> Tensor:
        """The logits after the last column, [N, V]; the cache grows by the columns of `tokens`."""
        given = {"position_ids": position, "logits_to_keep": 1}
        known = {name: given[name] for name in given if name in arguments(type(self.model))}
        out = self.model(
            input_ids=tokens,
            attention_mask=mask,
            past_key_values=self.cache,
            use_cache=True,
            **known,
            **more,
        )
        self.cache = out.past_key_values
        logits = out.logits[:, -1]
        return logits.index_fill(-1, self.banned, -torch.inf) if len(self.banned) else logits

    def advance(self, token: Tensor, left: Tensor | None = None) -> None:
        """Read one more token of each answer; answers that are not `left` are dropped if it pays.

        `token`: [N] int64; left: [n] int64, None: all.
        """
        recorder = self.recorder
        below = COPY_BELOW if recorder is None else COPY_RECORDED_BELOW
        if (left is not None and len(left) < below * len(token)) or not self.apart:
            if recorder is not None:
                self.mask, self.position = recorder.stop(self.mask, self.position)
            token = self.share_rows(token, left)
        if recorder is not None and self.apart:
            self.logits = recorder.advance(self.forward, token, self.mask, self.position)
            return
        if self.mask is not None:
            self.mask = pad(self.mask, (0, 1), value=1)
        logits = self.forward(token[:, None], self.position, self.mask)
        self.position = self.position + 1
        self.logits = logits if self.apart else logits[self.row]

    def share_rows(self, token: Tensor, left: Tensor | None) -> Tensor:
        """One row for identical answers, or per answer if that saves little: [N] int64 -> [R]."""
        if left is not None:
            own = self.keys, self.index, self.row, token
            self.keys, self.index, self.row, token = (x[left] for x in own)
        parents, row = self.row, torch.arange(len(token), device=token.device)
        if token.device.type == "cpu" and not self.apart:  # comparing synchronises an accelerator
            vocabulary = self.logits.shape[-1]
            pairs, place = (parents * vocabulary + token).unique(return_inverse=True)
            if len(pairs) < COPY_BELOW * len(token):
                parents, token, row = pairs // vocabulary, pairs % vocabulary, place
        self.cache.reorder_cache(parents)  # the one gather of rows that every kind of layer has
        self.position = self.position[..., parents, :]
        if self.mask is not None:
            self.mask = self.mask[parents]
        self.row, self.apart = row, len(parents) == len(row)
        return token


class Local:
    """The engine without a server: it samples with the weights that are trained, so there is no
    weight transfer, no stale copy, and no memory to release."""

    def __init__(
        self, model: nn.Module, precision: Precision = FULL, inputs: Inputs = TEXTS
    ) -> None:
        """inputs: arguments of the network besides tokens."""
        self.model, self.precision, self.inputs = model, precision, inputs

    @torch.no_grad()
    def answer(
        self, prompts: Sequence[list[int]], keys: Tensor, *, sampling: Sampling, endings: Endings
    ) -> Answers:
        """Sample keys.shape[1] answers to every prompt, prompt by prompt. keys: [P, G] int64.

        Noise depends only on a row's key and the position, so neither cuts nor other rows change a
        token.
        """
        with self.precision.on(keys.device):
            parts = [
                self.write(prompts[p], keys[p, s], sampling, endings)
                for p, s in cuts(*keys.shape, max_rows=sampling.max_rows)
            ]
        joined = concat(parts)
        longest = int(joined.length.max())
        return replace(joined, **{name: getattr(joined, name)[:, :longest] for name in COLUMNS})

    def write(
        self, prompts: Sequence[list[int]], keys: Tensor, sampling: Sampling, endings: Endings
    ) -> Answers:
        """The answers of one pass to keys [P, G], token by token. Ended rows are dropped if it
        pays."""
        steps = sampling.max_new_tokens
        rows = Rows(self.model, prompts, keys, sampling, self.inputs)
        written = Written(len(rows.keys), steps, endings, keys.device)
        for step in range(steps):
            drawn = draw(rows.logits, rng.key(rows.keys, step), sampling)
            left = written.add(drawn, rows.index, step)
            PROGRESS.report()
            if left is not None and len(left) == 0:
                break
            if step + 1 < steps:
                rows.advance(drawn.token, left)
        void = ~before(written.length, steps)
        columns = {name: vars(written)[name].masked_fill_(void, 0) for name in COLUMNS}
        return Answers(length=written.length, truncated=written.unfinished, **columns)


class Written:
    """Partly written answers. Columns after an end are void."""

    def __init__(self, rows: int, steps: int, endings: Endings, device: torch.device) -> None:
        self.tokens = torch.zeros(rows, steps, dtype=torch.int64, device=device)
        self.logp, self.entropy = (torch.zeros(rows, steps, device=device) for _ in range(2))
        self.length = torch.full((rows,), steps, device=device)
        self.unfinished = torch.ones(rows, dtype=torch.bool, device=device)
        self.endings = endings
        self.ends = torch.tensor(endings.tokens, dtype=torch.int64, device=device)
        self.interval = LOOK_EVERY.get(device.type, LOOK_EVERY_ELSEWHERE)
        self.looked = 0  # steps that were checked for ends

    def add(self, drawn: Draw, rows: Tensor, step: int) -> Tensor | None:
        """Add a token to these rows; return the indices of unfinished ones, [n] int64.

        `rows`: [N] int64. None: not checked in this step, or this was the last token.
        """
        self.tokens[rows, step] = drawn.token
        self.logp[rows, step] = drawn.logp.float()
        self.entropy[rows, step] = drawn.entropy.float()
        last = step + 1 == self.tokens.shape[1]
        if (step + 1) % self.interval and not last:
            return None
        steps, self.looked = range(self.looked, step + 1), step + 1
        tokens = self.tokens[rows, : steps.stop]
        ended = (tokens[:, steps.start :, None] == self.ends).any(-1)
        if self.endings.strings:
            ended |= self.endings.find_strings(tokens, steps)
        over = self.unfinished[rows] & ended.any(1)
        length = steps.start + 1 + ended.int().argmax(1)
        self.length[rows] = torch.where(over, length, self.length[rows])
        unfinished = self.unfinished[rows] & ~over
        self.unfinished[rows] = unfinished
        return None if last else unfinished.nonzero()[:, 0]
