"""A causal language model and its tokenizer, from a folder, the hub or a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torch import nn

from tandem.hub import align, hide_bars, locate, refuse_pickles, shorten_error
from tandem.policies.activations import save_activations
from tandem.policies.language.checkpoint import (
    DTYPES,
    check_whole,
    read_config,
    with_weights,
    without_dropout,
    without_weights,
)
from tandem.policies.language.positions import warn_of_positions
from tandem.policies.weights import disable_dropout

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Packing = bool | Literal["auto"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """Options of computation; none changes the function that the network computes."""

    dtype: Literal["float32", "bfloat16", "auto"] = "float32"  # auto: that of the checkpoint
    attn_implementation: str | None = None  # None: the family's default
    gradient_checkpointing: bool = False
    mlp_tile: int | None = None  # tokens per call of a feed-forward layer; None: all
    torch_compile: bool = False
    packing: Packing = False  # several rows per row of a training forward; auto: if it can
    share_prompts: bool = True  # a training forward reads a prompt once for neighbouring answers
    liger: bool = False  # fused kernels

    def __post_init__(self) -> None:
        if self.liger and self.mlp_tile is not None:
            raise ValueError(
                "model.liger=true replaces feed-forward layers, so they cannot be tiled; set "
                "model.mlp_tile=null, or model.liger=false"
            )

    @property
    def flash(self) -> bool:
        """Whether attention has no cost between rows that share a row of the pass."""
        return "flash" in (self.attn_implementation or "")


class Pretrained(NamedTuple):
    """A language model with its tokenizer."""

    model: nn.Module  # a transformers causal language model
    tokenizer: Any  # its transformers tokenizer


Build = Callable[[], tuple[nn.Module, Any]]


def load_model(
    path: str | None,
    build: Build | None,
    numerics: Numerics,
    *,
    key: str = "model.path",
    empty: bool = False,
) -> Pretrained:
    """Model in eval mode, and its tokenizer; `path` wins over `build`. `key`: the path's setting;
    `empty`: a model from a path has no weights yet.

    Raises ValueError if both are null.
    """
    hide_bars()
    if path is not None:
        loaded = from_path(path, numerics, key=key, empty=empty)
    elif build is not None:
        loaded = build_pretrained(build, numerics)
    else:
        raise ValueError("model.path is null; set it to a folder or hub name like Qwen/Qwen3-0.6B")
    align(loaded.model)
    check_memory(loaded.model, key)
    return Pretrained(ready(loaded.model, numerics), loaded.tokenizer)


def build_pretrained(build: Build, numerics: Numerics) -> Pretrained:
    """The model and tokenizer that a function returns, as if they had been loaded.

    Raises ValueError for a function that returns anything else.
    """
    made = build()
    pair = isinstance(made, tuple) and len(made) == 2
    if not pair or not isinstance(made[0], nn.Module) or made[1] is None:
        kinds = ", ".join(type(one).__name__ for one in made) if pair else type(made).__name__
        raise ValueError(
            f"the function of this model returned a {kinds}; it must return the model and its "
            "tokenizer"
        )
    from transformers import ProcessorMixin

    model, tokenizer = made
    rows = model.get_input_embeddings().weight.shape[0]
    known = len(tokenizer.tokenizer if isinstance(tokenizer, ProcessorMixin) else tokenizer)
    if rows < known:
        raise ValueError(
            f"the function of this model returned embeddings of {rows} tokens and a tokenizer of "
            f"{known}; give the model a vocab_size of at least that"
        )
    if numerics.dtype != "auto":
        model = model.to(DTYPES[numerics.dtype])
    if numerics.attn_implementation is not None:
        model.set_attn_implementation(numerics.attn_implementation)
    return Pretrained(model, tokenizer)


def from_path(path: str, numerics: Numerics, *, key: str, empty: bool = False) -> Pretrained:
    """Load a model; any failure is one line that names the setting.

    It is raised as a ValueError.
    """
    return read_from(path, numerics, causal, key=key, empty=empty)


def causal(config: PretrainedConfig) -> type:
    """The class that loads an autoregressive model."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM


def read_from(
    path: str,
    numerics: Numerics,
    choose: Callable[[PretrainedConfig], type],
    *,
    key: str = "model.path",
    empty: bool = False,
) -> Pretrained:
    """A model of the class that its configuration selects, with its tokenizer. `empty`: on the meta
    device, from its configuration alone."""
    from transformers import AutoTokenizer

    place = locate(path, key=key)
    refuse_pickles(place, key=key, kind="transformers.AutoModelForCausalLM")
    try:
        config = without_dropout(read_config(place))
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
        read = without_weights if empty else with_weights
        model, missing = read(
            choose(config),
            place,
            config,
            dtype=DTYPES[numerics.dtype],
            attn_implementation=numerics.attn_implementation,
        )
    except Exception as error:  # of a dozen libraries; all mean that this path cannot be used
        raise ValueError(f"{key}={path} cannot be loaded: {shorten_error(error)}") from None
    check_whole(f"{key}={path}", tokenizer, missing)
    return Pretrained(model, tokenizer)


def check_memory(model: nn.Module, key: str) -> None:
    """Raise ValueError for a model without past_key_values."""
    if "past_key_values" not in arguments(type(model)):
        raise ValueError(
            f"{key}: {type(model).__name__} has no past_key_values, which sampling needs"
        )


def refuse_frozen(network: nn.Module) -> None:
    """Raise ValueError for a network, with its adapters, of which no weight is trained."""
    if not any(weight.requires_grad for weight in network.parameters()):
        raise ValueError(
            f"{type(network).__name__} has no trainable parameter; leave out "
            "requires_grad_(False), or set model.lora"
        )


def language_layers(model: nn.Module) -> nn.Module | None:
    """The layers that read texts, of a model with other parts, such as a vision tower; None: it has
    no others."""
    return None if model.config.get_text_config() is model.config else model.get_decoder()


def language_weights(model: nn.Module) -> list[nn.Parameter]:
    """The weights of those layers, of the embeddings and of the head."""
    parts = (model.get_decoder(), model.get_input_embeddings(), model.get_output_embeddings())
    return [*dict.fromkeys(p for part in parts for p in part.parameters())]


def train_language(model: nn.Module) -> None:
    """Freeze the other parts: a text does not reach them, and ranks wait for every gradient."""
    own = {*language_weights(model)}
    for weight in [weight for weight in model.parameters() if weight not in own]:
        weight.requires_grad_(False)


def ready(model: nn.Module, numerics: Numerics) -> nn.Module:
    """Without dropout, in eval mode, with recomputed activations if configured."""
    disable_dropout(model)
    warn_of_positions(model)
    save_activations(model, numerics)
    return model.eval()


@contextmanager
def without_flash_attention(model: nn.Module) -> Iterator[None]:
    """A context for probes on the CPU: without flash attention, which needs a GPU."""
    own, on_cpu = model.config._attn_implementation, model.device.type == "cpu"
    if not (on_cpu and "flash" in str(own)):
        yield
        return
    model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        model.set_attn_implementation(own)


def vocabulary_of(model: nn.Module) -> int:
    """The number of logits."""
    return model.config.get_text_config().vocab_size


def end_tokens(model: nn.Module) -> int | list[int] | None:
    """End tokens of the model's configuration."""
    said = model.generation_config if model.can_generate() else model.config
    return said.eos_token_id


def argument_names(function: Callable) -> frozenset[str]:
    """The names of its arguments."""
    return frozenset(inspect.signature(function).parameters)


@cache
def arguments(model: type[nn.Module]) -> frozenset[str]:
    """The arguments of its forward, which differ between families."""
    return argument_names(model.forward)
