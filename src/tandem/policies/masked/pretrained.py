"""A masked-diffusion model and its tokenizer: from a folder, the hub, or a function."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from tandem.hub import align, hide_bars
from tandem.policies.language.pretrained import (
    Build,
    Numerics,
    Pretrained,
    built,
    end_tokens,
    probed,
    read_from,
    ready,
)
from tandem.policies.masked.logprob import MaskTokens

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def read_masked(path: str | None, build: Build | None, numerics: Numerics) -> Pretrained:
    """Model in eval mode and tokenizer; `path` wins over `build`.

    Raises ValueError where both are null, and for a model that does not look right.
    """
    hide_bars()
    if path is not None:
        loaded = from_path(path, numerics)
    elif build is not None:
        loaded = built(build, numerics)
    else:
        raise ValueError("model.path is null: give a folder or a hub name of a masked model")
    align(loaded.model)
    check_both_ways(loaded.model)
    return Pretrained(ready(loaded.model, numerics), loaded.tokenizer)


def from_path(path: str, numerics: Numerics) -> Pretrained:
    """A masked language model, or a decoder whose attention is opened to the right."""
    return read_from(path, numerics, looking_both_ways)


def looking_both_ways(config: PretrainedConfig) -> type:
    """The class that loads a configuration, which is told not to be causal."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

    if type(config) in MODEL_FOR_MASKED_LM_MAPPING:
        return AutoModelForMaskedLM
    config.is_causal = False
    return AutoModelForCausalLM


@torch.no_grad()
def check_both_ways(model: nn.Module) -> None:
    """Raise ValueError where changing the last token does not move the first logits."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    tokens = torch.arange(8, device=model.device)[None].repeat(2, 1) % vocabulary
    tokens[1, -1] = vocabulary // 2
    with probed(model):
        first = model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits[:, 0]
    if torch.equal(first[0], first[1]):
        raise ValueError(
            f"model: {type(model).__name__} does not look to the right: its last token moves no "
            "logit of the first; take a model of masked texts, or model=hf for this one"
        )


def mask_tokens(found: Pretrained, *, mask: int | None, shift: bool | None) -> MaskTokens:
    """Which tokens hide others, and are none of an answer.

    Raises ValueError where nothing says which token hides others.
    """
    model, tokenizer = found
    config = model.config.get_text_config().to_dict()
    said = (mask, tokenizer.mask_token_id, config.get("mask_token_id"))
    mask = next((one for one in said if one is not None), None)
    if mask is None:
        raise ValueError(
            "model.mask_token_id is null, and neither the model nor its tokenizer names a token "
            "that hides others; set it to the id of one"
        )
    padding = {tokenizer.pad_token_id} - {None, *ends_of(found)}
    return MaskTokens(mask=mask, banned=(*sorted({mask, *padding}),), shift=int(bool(shift)))


def ends_of(found: Pretrained) -> list[int]:
    """The tokens that end an answer."""
    configured = end_tokens(found.model)
    several = [configured] if isinstance(configured, int) else list(configured or ())
    return [*several, found.tokenizer.eos_token_id]
