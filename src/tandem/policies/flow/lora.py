"""LoRA adapters of a diffusers transformer: added, switched off, and merged for saving."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from tandem.policies.flow.components import Components, components, learns
from tandem.policies.lora import Lora, is_adapted, is_base, merged_weights
from tandem.policies.weights import layers_of

if TYPE_CHECKING:
    from diffusers.loaders.lora_base import LoraBaseMixin

OWN, EVERY_LINEAR = "attention", "all-linear"
# The layers of both streams, picture and text, that Flow-GRPO adapts (arXiv:2505.05470).
ATTENTION = (
    "attn.to_q",
    "attn.to_k",
    "attn.to_v",
    "attn.to_out.0",
    "attn.add_q_proj",
    "attn.add_k_proj",
    "attn.add_v_proj",
    "attn.to_add_out",
)


def add_adapters(network: nn.Module, lora: Lora, *, own: Sequence[str], seed: int) -> None:
    """Add float32 adapters without dropout to all trained components and freeze all other weights.

    `own`: the layers that "attention" means in this family. Layers that are already frozen get
    none: they would receive no gradient, for which ranks would wait. Raises ValueError for an
    unknown target.
    """
    for part in components(network).values():
        if learns(part):
            adapt(part, lora, own=own, seed=seed)


def adapt(network: nn.Module, lora: Lora, *, own: Sequence[str], seed: int) -> None:
    """Add the adapters of `add_adapters` to one component."""
    from tandem.policies.low_rank import fuse_adapters

    places = lora.target_modules
    if places == OWN:
        places = own
    elif places == EVERY_LINEAR:
        places = linear_layers(network)
    config = lora.as_peft(places, exclude=frozen_layers(network))
    network.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            network.add_adapter(config)
        except ValueError as error:
            raise ValueError(f"model.lora does not fit this model: {error}") from None
    fuse_adapters(network)
    for name, parameter in network.named_parameters():
        if not is_base(name):
            parameter.data = parameter.data.float()
            parameter.requires_grad_(True)


def frozen_layers(network: nn.Module) -> list[str]:
    """The names of frozen linear layers."""
    linear = layers_of(network, nn.Linear)
    return [name for name, layer in linear.items() if not layer.weight.requires_grad]


def linear_layers(network: nn.Module) -> list[str]:
    """The linear layers of all blocks, without embeddings of time, text or patches and the head."""
    # Z-Image calls its lists of blocks layers and refiners.
    lists = {name for name in layers_of(network, nn.ModuleList) if "." not in name}
    layers = layers_of(network, nn.Linear)
    return [name for name in layers if "blocks." in name or name.partition(".")[0] in lists]


@contextmanager
def without_adapters(network: nn.Module) -> Iterator[None]:
    """The base model, which is the reference. No graph with recomputed layers may be waiting for
    its backward pass."""
    parts = [part for part in components(network).values() if is_adapted_in(part)]
    for part in parts:
        part.disable_adapters()
    try:
        yield
    finally:
        for part in parts:
            part.enable_adapters()


def is_adapted_in(network: nn.Module) -> bool:
    """Whether any of its layers has an adapter."""
    return any(map(is_adapted, network.modules()))


def plain_copy(network: nn.Module) -> nn.Module:
    """A copy with adapters merged; it shares the tensors of layers without adapters."""
    if isinstance(network, Components):
        plain = {n: plain_copy(x) if is_adapted_in(x) else x for n, x in network.items()}
        return Components(plain)
    with torch.device("meta"):
        copy = type(network).from_config(network.config)
    copy.load_state_dict(merged_weights(network), assign=True)
    return copy


def save_lora(network: nn.Module, folder: Path, loader: type[LoraBaseMixin]) -> None:
    """Save adapters, rank and alpha for `load_lora_weights` of that pipeline."""
    from peft import get_peft_model_state_dict

    layers = [name for name, layer in network.named_modules() if is_adapted(layer)]
    own = network.peft_config["default"].to_dict()
    loader.save_lora_weights(
        folder,
        transformer_lora_layers=get_peft_model_state_dict(network, adapter_name="default"),
        # The exact layers: a list of suffixes would match layers without adapters.
        transformer_lora_adapter_metadata=own | {"target_modules": layers, "exclude_modules": None},
    )
