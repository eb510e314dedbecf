"""A masked-diffusion model and its tokenizer, from a folder, the hub or a function."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from tandem.hub import align, hide_bars, list_ends, locate, refuse_pickles, shorten_error
from tandem.policies.language.checkpoint import check_whole, read_config, without_dropout
from tandem.policies.language.positions import positions
from tandem.policies.language.pretrained import (
    Build,
    Numerics,
    Pretrained,
    build_pretrained,
    end_tokens,
    read_from,
    ready,
    without_flash_attention,
)
from tandem.policies.masked.formats import Format, format_of, read_raw, read_state
from tandem.policies.masked.logprob import MaskTokens

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

LIKELY = "The capital of France is Paris. One, two, three, four, five, six, seven, eight."
# A word counts as predicted if it is among the TOP tokens; a trained model predicts more than TOLD.
TOP, TOLD = 5, 0.4
FEWEST = 8  # words of the text that a tokenizer must know


def read_masked(path: str | None, build: Build | None, numerics: Numerics) -> Pretrained:
    """Model in eval mode, and its tokenizer; `path` wins over `build`.

    Raises ValueError if both are null, or if the model is not bidirectional.
    """
    hide_bars()
    if path is not None:
        loaded = from_path(path, numerics)
    elif build is not None:
        loaded = build_pretrained(build, numerics)
    else:
        raise ValueError("model.path is null; set it to a folder or hub name of a masked model")
    align(loaded.model)
    check_both_ways(loaded.model)
    return Pretrained(ready(loaded.model, numerics), loaded.tokenizer)


def from_path(path: str, numerics: Numerics) -> Pretrained:
    """A masked language model, a decoder made bidirectional, or a checkpoint of LLaDA or Dream."""
    place = locate(path, key="model.path")
    form = format_of(read_raw(place))
    if form is None:
        return read_from(path, numerics, looking_both_ways)
    refuse_pickles(place, key="model.path", kind="transformers.AutoModelForCausalLM")
    try:
        model, missing = in_format(form, place, numerics)
        tokenizer = form.tokenizer(place)
    except Exception as error:  # whatever a library raises for an unreadable checkpoint
        raise ValueError(f"model.path={path} cannot be loaded: {shorten_error(error)}") from None
    check_whole(f"model.path={path}", tokenizer, missing)
    return Pretrained(model, tokenizer)


def in_format(form: Format, place: str, numerics: Numerics) -> tuple[nn.Module, set[str]]:
    """The model of a checkpoint in its original format, and the names of missing weights."""
    config = without_dropout(form.config(read_raw(place)))
    state = read_state(form, place)
    own = next(iter(state.values())).dtype
    model = looking_both_ways(config).from_config(
        config,
        dtype={"float32": torch.float32, "bfloat16": torch.bfloat16}.get(numerics.dtype, own),
        attn_implementation=numerics.attn_implementation,
    )
    report = model.load_state_dict(state, strict=False)
    if report.unexpected_keys:
        raise ValueError(f"{report.unexpected_keys[0]} is not a weight of {type(model).__name__}")
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    return model, {*report.missing_keys} - tied


def read_masked_config(place: str) -> PretrainedConfig:
    """The configuration as transformers' own class, also for LLaDA and Dream."""
    raw = read_raw(place)
    form = format_of(raw)
    return read_config(place) if form is None else form.config(raw)


def looking_both_ways(config: PretrainedConfig) -> type:
    """The class that loads a configuration, with causal attention switched off."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

    if type(config) in MODEL_FOR_MASKED_LM_MAPPING:
        return AutoModelForMaskedLM
    config.is_causal = False
    return AutoModelForCausalLM


@torch.no_grad()
def check_both_ways(model: nn.Module) -> None:
    """Raise ValueError if changing the last token does not change the first logits."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    tokens = torch.arange(8, device=model.device)[None].repeat(2, 1) % vocabulary
    tokens[1, -1] = (tokens[0, -1] + 1) % vocabulary
    with without_flash_attention(model):
        first = model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits[:, 0]
    if torch.equal(first[0], first[1]):
        raise ValueError(
            f"model: {type(model).__name__} is causal: changing its last token changes no logit of "
            "the first; choose a masked language model, or set model=hf for this one"
        )


def mask_tokens(found: Pretrained, *, mask: int | None, shift: bool | None) -> MaskTokens:
    """The mask token, and the tokens that no answer contains.

    Raises ValueError if no mask token is known, or the model has no such token.
    """
    model, tokenizer = found
    config = model.config.get_text_config().to_dict()
    said = (mask, tokenizer.mask_token_id, config.get("mask_token_id"))
    mask = next((one for one in said if one is not None), None)
    if mask is None:
        raise ValueError(
            "model.mask_token_id is null, and neither the model nor its tokenizer names a mask "
            "token; set it to the id of the mask token"
        )
    most = model.get_input_embeddings().weight.shape[0] - 1
    if not 0 <= mask <= most:
        raise ValueError(f"model.mask_token_id={mask}: the model has tokens 0 to {most}")
    padding = {tokenizer.pad_token_id} - {None, *list_ends(tokenizer, end_tokens(found.model))}
    shift = config.get("shift_logits", False) if shift is None else shift
    tokens = MaskTokens(mask=mask, banned=(*sorted({mask, *padding}),), shift=int(shift))
    check_shift(found, tokens)
    return tokens


@torch.no_grad()
def check_shift(found: Pretrained, tokens: MaskTokens) -> None:
    """Raise ValueError if the logits of the other position predict a likely text and those that
    `shift_logits` selects do not. Random weights predict neither and pass, as does a tokenizer
    that knows too little of the text."""
    model, tokenizer = found
    ids = ids_of_likely(tokenizer)[: positions(model)]
    # A token is also predicted because the position before it shows the same.
    known = [i for i in range(1, len(ids)) if ids[i] not in (tokenizer.unk_token_id, ids[i - 1])]
    if len(known) < FEWEST:
        return
    row, places = torch.arange(len(known)), torch.tensor(known)
    rows = torch.tensor(ids, device=model.device).repeat(len(known), 1)
    rows[row, places] = tokens.mask
    with without_flash_attention(model):
        logits = model(input_ids=rows, attention_mask=torch.ones_like(rows)).logits
    truth = torch.tensor(ids)[places, None]
    hits = [
        (logits[row, places - shift].topk(TOP).indices.cpu() == truth).any(1) for shift in (0, 1)
    ]
    shares = [hit.float().mean().item() for hit in hits]
    if shares[tokens.shift] < TOLD < shares[1 - tokens.shift]:
        raise ValueError(
            f"model.shift_logits={bool(tokens.shift)} predicts {shares[tokens.shift]:.0%} of the "
            f"words of a likely text, and the opposite {shares[1 - tokens.shift]:.0%}; set "
            f"model.shift_logits={not tokens.shift}"
        )


def ids_of_likely(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The token ids of a likely text; none if the tokenizer raises for letters that it lacks."""
    try:
        return tokenizer(LIKELY, add_special_tokens=False)["input_ids"]
    except Exception:  # of tokenizers without an unknown token, which raise no other type
        return []
