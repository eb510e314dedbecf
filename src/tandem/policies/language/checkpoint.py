"""A checkpoint in the format of transformers, read with its weights or for its structure alone."""

from __future__ import annotations

from contextlib import suppress
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from transformers import PretrainedConfig

MOST_LAYERS = 1000  # the deepest models have about 130
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "auto": "auto"}


def with_weights(
    made_by: Any,
    place: str,
    config: PretrainedConfig,
    *,
    dtype: torch.dtype | str,
    attn_implementation: str | None,
) -> tuple[nn.Module, set[str]]:
    """The model in host memory, and the names of its missing weights."""
    packed = bool(packings_of(config))
    model, report = made_by.from_pretrained(
        place,
        config=config,
        dtype=dtype,
        attn_implementation=attn_implementation,
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
    )
    if packed:
        del model._weight_conversions  # to the names of packed weights, when it is saved
        if model.config.dtype is torch.float32:
            model.float()  # unpacked weights are bfloat16, whatever dtype says
    return model, report["missing_keys"]


def without_weights(
    made_by: Any,
    place: str,
    config: PretrainedConfig,
    *,
    dtype: torch.dtype | str,
    attn_implementation: str | None,
) -> tuple[nn.Module, set[str]]:
    """The same model on the meta device: no file of weights is opened, so it reports none as
    missing, and some dtypes may differ from those of `with_weights`."""
    from transformers import GenerationConfig

    of_config = config.get_text_config().dtype or torch.float32
    with torch.device("meta"):
        model = made_by.from_config(
            config,
            dtype=of_config if dtype == "auto" else dtype,
            attn_implementation=attn_implementation,
            trust_remote_code=False,
        )
    if model.can_generate():
        with suppress(OSError):  # without a file it follows from the configuration, as it does now
            model.generation_config = GenerationConfig.from_pretrained(place)
    return model, set()


def check_whole(given: str, tokenizer: Any, missing: set[str]) -> None:
    """transformers initialises missing weights at random, with a warning at most.

    Raises ValueError for missing weights or tokenizer.
    """
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise ValueError(f"{given} has no tokenizer; save one with the model")
    if missing:
        names = ", ".join(sorted(missing)[:3])
        raise ValueError(f"{given} lacks {len(missing)} weights, such as {names}")


def read_config(place: str) -> PretrainedConfig:
    """The configuration of a model with code in transformers.

    Raises ValueError for weights that stay packed, and for more layers than any model has: building
    them would not end.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(place, trust_remote_code=False)
    unpack_when_read(config)
    layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
    if layers > MOST_LAYERS:
        raise ValueError(f"its config.json has {layers} layers; the most are {MOST_LAYERS}")
    return config


def unpack_when_read(config: Any) -> None:
    """Let transformers unpack the weights of a quantised checkpoint while it reads them.

    Raises ValueError for a method whose weights it can only keep packed: they cannot be trained,
    merged with adapters or saved.
    """
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    for said in packings_of(config):
        method = said.get("quant_method")
        kind = AUTO_QUANTIZATION_CONFIG_MAPPING.get(method)
        if kind is None or "dequantize" not in signature(kind).parameters:
            raise ValueError(
                f"its weights are quantised by {method}, which cannot be trained; give the "
                "unquantised model, whose base model/quantization=bnb_4bit packs below model.lora"
            )
        said["dequantize"] = True


def packings_of(config: Any) -> list[dict[str, Any]]:
    """How the weights of a checkpoint are packed, by its configuration; plain ones: empty."""
    said = [getattr(c, "quantization_config", None) for c in (config, config.get_text_config())]
    return [one for one in said if one is not None]


def without_dropout(config: Any) -> Any:
    """The configuration with all dropout rates 0: rows are scored as they were sampled."""
    parts = (config, config.get_text_config(), *(getattr(config, n) for n in config.sub_configs))
    for part in filter(None, parts):  # a model without sound has none of it
        for name, value in part.to_dict().items():
            if "drop" in name and isinstance(value, float):
                setattr(part, name, 0.0)
    return config
