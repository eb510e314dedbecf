"""Contexts of a row: the conversations of one episode, each of which the policy reads by itself.

An agent may rewrite its history, summarise it, or begin a second conversation. Moves after that
have a context of their own; the tokens of all contexts are in one row, in the order in which they
came. So an episode is one row and counts once, with any number of contexts.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tandem.policies.language.inputs import TokenIndex
from tandem.policies.language.records import TokenSample


def split_contexts(sample: TokenSample, places: TokenIndex) -> tuple[TokenSample, TokenIndex]:
    """The same steps with one row per context, as a network reads them."""
    if not len(places.row):
        return replace(sample, context=None), places
    context = contexts_of(sample)
    count = int(context.max()) + 1
    # Column of each token within its context; line numbers each pair of row and context.
    column = torch.nn.functional.one_hot(context, count).cumsum(1) - 1
    column = column.gather(2, context[..., None])[..., 0]
    line = torch.arange(len(context), device=context.device)[:, None] * count + context
    wanted, row = line[places.row, places.column].unique(return_inverse=True)
    own = places.column.new_full((len(context) * count,), -1)
    own = own.index_put((wanted,), torch.arange(len(wanted), device=own.device))[line]
    inside = own >= 0
    places = replace(places, row=row, column=column[places.row, places.column])
    tokens = own.new_zeros(len(wanted), int(column[inside].max()) + 1)
    images = sample.images
    return (
        TokenSample(
            tokens=tokens.index_put((own[inside], column[inside]), sample.tokens[inside]),
            prompt_length=first_step(places, len(wanted)),
            temperature=sample.temperature[wanted // count],
            images=images
            and tuple(() if i % count else images[i // count] for i in wanted.tolist()),
        ),
        places,
    )


def contexts_of(sample: TokenSample) -> Tensor:
    """The number of the context of every token, [B, S]; a prompt belongs to context 0."""
    step = torch.arange(sample.tokens.shape[1], device=sample.tokens.device)
    step = step - sample.prompt_length[:, None]
    found = sample.context.gather(1, step.clamp(0, sample.context.shape[1] - 1))
    return torch.where(step >= 0, found, 0)


def first_step(places: TokenIndex, rows: int) -> Tensor:
    """The column of the first step of each row, where its prompt ends: [B]."""
    none = torch.iinfo(torch.int64).max
    return places.column.new_full((rows,), none).scatter_reduce(
        0, places.row, places.column, "amin"
    )


def longest_context(sample: TokenSample, mask: Tensor) -> int:
    """Tokens of the longest context in any row, up to its last step in a mask [B, T]."""
    places = TokenIndex.of(sample, mask)
    if sample.context is not None:
        _, places = split_contexts(sample, places)
    return int(places.column.max()) + 1


def padded_cost(sample: TokenSample, places: TokenIndex) -> Tensor:
    """Tokens read for each row's contexts, each padded to the longest: [B]."""
    context = contexts_of(sample)
    column = torch.arange(context.shape[1], device=context.device)
    read = (column < places.read(len(context))[:, None]).long()
    lengths = read.new_zeros(len(context), int(context.max()) + 1).scatter_add(1, context, read)
    return (lengths > 0).sum(1) * lengths.amax(1)
