"""Probes of a network: whether it can read packed rows, and a prompt once for all its answers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from tandem.policies.language.inputs import Inputs, Layout, LayoutFn, Probe, pad_rows
from tandem.policies.language.packing import pack_in_one_row, pack_rows
from tandem.policies.language.prefix import behind_prompts
from tandem.policies.language.pretrained import Numerics, arguments, without_flash_attention
from tandem.policies.language.records import TokenSample

# Tolerances for wide and for narrow dtypes, as a share of what a neighbour would change in a row.
ALONE = 1e-3, 0.05  # packed against padded rows: passes of other shapes round differently
APART = 1e-5, 0.0  # between different neighbours: in passes of one shape only experts round

Forward = Callable[[Layout], Tensor]  # outputs of a network at every position, [R, S, D]


def choose_layout(
    model: nn.Module, layers: nn.Module, forward: Forward, numerics: Numerics, inputs: Inputs
) -> LayoutFn:
    """The layout of rows: packed only if the network keeps packed rows apart. Without weights it is
    the safe one, until the first rank says what it found.

    Raises ValueError if model.packing=true and it does not.
    """
    asked = numerics.packing
    embeddings = model.get_input_embeddings().weight
    if asked is False or embeddings.is_meta:
        return pad_rows
    with without_flash_attention(model):
        probe = inputs.probe(len(embeddings), embeddings.device)
        if "position_ids" in arguments(type(layers)) and keeps_rows_apart(
            forward, probe, embeddings
        ):
            return pack_in_one_row if numerics.flash else pack_rows
    reason = (
        f"{type(model).__name__} mixes packed rows: its attention ignores where a row begins, "
        "or it has a recurrent state"
    )
    if asked is True:
        raise ValueError(f"model.packing=true: {reason}; set model.packing=false")
    warnings.warn(f"model.packing={asked}: {reason}; rows are padded", stacklevel=3)
    return pad_rows


def shares_prompts(
    model: nn.Module, layers: nn.Module, forward: Forward, numerics: Numerics, inputs: Inputs
) -> bool:
    """Whether a prompt may be read once for all its rows. Blocks that share keys and values are not
    recomputed, and some families do not keep those of every token."""
    if numerics.gradient_checkpointing or numerics.torch_compile or numerics.flash:
        return False
    takes = {"position_ids", "past_key_values"} <= arguments(type(layers))
    if not (numerics.share_prompts and inputs.shares_prompts and takes):
        return False
    embeddings = model.get_input_embeddings().weight
    if embeddings.is_meta:
        return False
    with without_flash_attention(model):
        return keeps_every_token(layers, embeddings) and keeps_prompts(
            forward, len(embeddings), embeddings
        )


@torch.no_grad()
def keeps_every_token(layers: nn.Module, like: Tensor) -> bool:
    """Whether every layer caches keys and values of all tokens, and nothing else."""
    from transformers.cache_utils import DynamicLayer

    tokens = torch.zeros(1, 2, dtype=torch.int64, device=like.device)
    remembered = layers(input_ids=tokens, use_cache=True).past_key_values.layers
    return all(type(layer) is DynamicLayer for layer in remembered)


@torch.no_grad()
def keeps_prompts(states: Forward, vocabulary: int, like: Tensor) -> bool:
    """Whether an answer after a cached prompt, beside prompts of other lengths, has the same
    outputs as the row alone, to rounding.

    states: as in `keeps_rows_apart`. Measured relative to the change from swapped prompts.
    """
    tokens = (torch.arange(32, device=like.device) % vocabulary).view(4, 8)
    tokens[1, :5], tokens[3, :3] = tokens[0, :5], tokens[2, :3]
    prompt = torch.tensor([5, 5, 3, 3], device=like.device)
    sample = TokenSample(tokens=tokens, prompt_length=prompt, temperature=prompt.float())
    shared = behind_prompts(sample, torch.full_like(prompt, 8))
    swapped = replace(shared, prefix=replace(shared.prefix, of_row=1 - shared.prefix.of_row))
    alone = pad_rows(tokens, torch.full_like(prompt, 8))
    row, step = (torch.arange(5, device=like.device) < 9 - prompt[:, None]).nonzero(as_tuple=True)
    want, got, others = (
        states(layout).flatten(0, 1)[layout.start[row] + prompt[row] - 1 + step].float()
        for layout in (alone, shared, swapped)
    )
    narrow = like.dtype not in (torch.float32, torch.float64)
    return bool((got - want).norm() <= ALONE[narrow] * (others - want).norm())


@torch.no_grad()
def keeps_rows_apart(states: Forward, probe: Probe, like: Tensor) -> bool:
    """Whether a row beside others has the same outputs as alone, to rounding, and beside different
    neighbours the same to the last bit of a narrow dtype: a small leak could pass for rounding.

    states: outputs at every position, [R, S, D]. Measured relative to the outputs of all rows as
    one long text, so that the network's size and depth do not matter.
    """
    width = torch.arange(probe.tokens.shape[1], device=like.device)
    row, column = (width < probe.read[:, None]).nonzero(as_tuple=True)
    beside = pack_in_one_row(probe.tokens, probe.read)
    alone = probe.dress(pad_rows(probe.tokens, probe.read))
    others = probe.dress(pack_in_one_row(probe.others, probe.read))
    whole = replace(probe.dress(beside), position=None)
    want, got, among_others, as_one = (
        states(layout).flatten(0, 1)[layout.start[row] + column].float()
        for layout in (alone, probe.dress(beside), others, whole)
    )
    leak, second = (as_one - want).norm(), row == 1
    narrow = like.dtype not in (torch.float32, torch.float64)
    as_alone = (got - want).norm() <= ALONE[narrow] * leak
    return bool(as_alone and (among_others - got)[second].norm() <= APART[narrow] * leak)
