"""Formats of masked-diffusion checkpoints that ship their own code, which is never run.

LLaDA is a Llama with renamed weights and Dream is a Qwen2.5; both attend in both directions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

Raw = Mapping[str, Any]  # a config.json
# The name of a weight of a layer in LLaDA -> its name in transformers' Llama.
OF_LAYER = {
    "attn_norm": "input_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_norm": "post_attention_layernorm",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}
OUTSIDE = {
    "model.transformer.wte": "model.embed_tokens",
    "model.transformer.ln_f": "model.norm",
    "model.transformer.ff_out": "lm_head",
}
OF_DREAM = (  # numbers that have the same names in Qwen2's configuration
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "rms_norm_eps"),
    *("num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
    *("tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id", "mask_token_id"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """Conversion of a checkpoint to a model of transformers and back."""

    config: Callable[[Raw], PretrainedConfig]
    tokenizer: Callable[[str], PreTrainedTokenizerBase]  # of a folder or a repository
    inward: Callable[[str], str]  # the name of a weight in the checkpoint -> in transformers
    outward: Callable[[str], str]


def llada_config(raw: Raw) -> PretrainedConfig:
    """The equivalent Llama configuration. Raises ValueError for blocks that Llama lacks."""
    from transformers import LlamaConfig

    wanted = {"block_type": "llama", "layer_norm_type": "rms", "activation_type": "silu"}
    for name, value in wanted.items():
        if raw.get(name, value) != value:
            raise ValueError(f"{name}={raw[name]} is not supported: a Llama has {value}")
    biased = bool(raw.get("include_bias", False))
    return LlamaConfig(
        vocab_size=raw.get("embedding_size") or raw["vocab_size"],
        hidden_size=raw["d_model"],
        intermediate_size=raw["mlp_hidden_size"],
        num_hidden_layers=raw["n_layers"],
        num_attention_heads=raw["n_heads"],
        num_key_value_heads=raw.get("n_kv_heads") or raw["n_heads"],
        max_position_embeddings=raw["max_sequence_length"],
        rms_norm_eps=raw.get("rms_norm_eps", 1e-5),
        rope_parameters={"rope_type": "default", "rope_theta": raw.get("rope_theta", 10000.0)},
        attention_bias=biased or bool(raw.get("include_qkv_bias", False)),
        mlp_bias=biased,
        tie_word_embeddings=bool(raw.get("weight_tying", False)),
        eos_token_id=raw["eos_token_id"],
        pad_token_id=raw.get("pad_token_id"),
        mask_token_id=raw.get("mask_token_id", 126336),
        shift_logits=False,
    )


def dream_config(raw: Raw) -> PretrainedConfig:
    """The equivalent Qwen2.5 configuration; a token's logits are at the position before it."""
    from transformers import Qwen2Config

    numbers = {name: raw[name] for name in OF_DREAM if raw.get(name) is not None}
    numbers.setdefault("mask_token_id", 151666)
    theta = raw.get("rope_theta") or raw.get("rope_parameters", {}).get("rope_theta", 1e6)
    rope = {"rope_type": "default", "rope_theta": theta}
    return Qwen2Config(**numbers, rope_parameters=rope, shift_logits=True)


def llada_inward(name: str) -> str:
    """LLaDA's name of a weight -> Llama's."""
    layer = re.fullmatch(r"model\.transformer\.blocks\.(\d+)\.(\w+)\.(weight|bias)", name)
    if layer:
        number, part, kind = layer.groups()
        return f"model.layers.{number}.{OF_LAYER[part]}.{kind}"
    place, _, kind = name.rpartition(".")
    return f"{OUTSIDE[place]}.{kind}"


def llada_outward(name: str) -> str:
    """Llama's name of a weight -> LLaDA's."""
    layer = re.fullmatch(r"model\.layers\.(\d+)\.([\w.]+)\.(weight|bias)", name)
    if layer:
        number, part, kind = layer.groups()
        own = {here: there for there, here in OF_LAYER.items()}[part]
        return f"model.transformer.blocks.{number}.{own}.{kind}"
    place, _, kind = name.rpartition(".")
    own = {here: there for there, here in OUTSIDE.items()}[place]
    return f"{own}.{kind}"


def llada_tokenizer(place: str) -> PreTrainedTokenizerBase:
    """LLaDA's tokenizer, which is a single tokenizer.json."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(place)


def dream_tokenizer(place: str) -> PreTrainedTokenizerBase:
    """Qwen2's tokenizer with one more token, the mask."""
    from transformers import Qwen2Tokenizer

    return Qwen2Tokenizer.from_pretrained(place)


def same(name: str) -> str:
    """The same name: checkpoint and transformers agree."""
    return name


FORMATS: Mapping[str, Format] = {  # by the model_type of a config.json
    "llada": Format(
        config=llada_config,
        tokenizer=llada_tokenizer,
        inward=llada_inward,
        outward=llada_outward,
    ),
    "Dream": Format(config=dream_config, tokenizer=dream_tokenizer, inward=same, outward=same),
}


def read_raw(place: str) -> Raw:
    """The config.json of a folder or a repository, unchanged."""
    from transformers import PretrainedConfig

    return PretrainedConfig.get_config_dict(place)[0]


def format_of(raw: Raw) -> Format | None:
    """The format of a checkpoint; None: it is transformers' own."""
    return FORMATS.get(raw.get("model_type"))


def read_state(form: Format, place: str) -> dict[str, Tensor]:
    """All weights of a checkpoint, renamed for the transformers class that loads them.

    Of any shape [...].
    """
    from huggingface_hub import snapshot_download
    from safetensors.torch import load_file

    files = ["*.json", "*.safetensors", "*.txt"]
    folder = place if Path(place).is_dir() else snapshot_download(place, allow_patterns=files)
    shards = [load_file(file) for file in sorted(Path(folder).glob("*.safetensors"))]
    return {form.inward(name): x for shard in shards for name, x in shard.items()}


def write_back(form: Format, raw: Raw, folder: Path) -> None:
    """Convert a model that transformers saved in a folder back to its original format."""
    from safetensors.torch import load_file, save_file

    for file in folder.glob("*.safetensors"):
        named = {form.outward(name): x for name, x in load_file(file).items()}
        save_file(named, file, metadata={"format": "pt"})
    for index in folder.glob("*.safetensors.index.json"):
        said = json.loads(index.read_text(encoding="utf-8"))
        places = said["weight_map"].items()
        said["weight_map"] = {form.outward(name): file for name, file in places}
        index.write_text(json.dumps(said, indent=2), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(dict(raw), indent=2), encoding="utf-8")
