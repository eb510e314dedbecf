"""What Stable Diffusion 3, 3.5 and the embedded model share: diffusers' SD3 transformer."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from tandem.hub import one_line
from tandem.policies.flow.records import Condition

# Of both streams, picture and text; those that Flow-GRPO adapts (arXiv:2505.05470).
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


def velocity(network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
    """The transformer counts noise levels in thousandths."""
    dtype = network.pos_embed.proj.weight.dtype
    return network(
        hidden_states=x.to(dtype),
        timestep=1000 * sigma,
        encoder_hidden_states=condition["states"].to(dtype),
        pooled_projections=condition["pooled"].to(dtype),
        return_dict=False,
    )[0]


def transformer_from(folder: str, dtype: torch.dtype | None) -> nn.Module:
    """The transformer of a pipeline's folder. Whatever cannot be loaded is one line."""
    from diffusers import SD3Transformer2DModel

    if not (Path(folder) / "transformer" / "config.json").is_file():
        raise ValueError(f"model.path={folder} holds no transformer/config.json")
    try:
        return SD3Transformer2DModel.from_pretrained(
            folder, subfolder="transformer", dtype=dtype or "auto"
        )
    except Exception as error:  # several libraries' own; all mean that this path is of no use
        raise ValueError(f"model.path={folder} cannot be loaded: {one_line(error)}") from None


def image_tokens(size: int, patch: int) -> int:
    """Of a square latent."""
    return (size // patch) ** 2


def save_lora(network: nn.Module, folder: Path) -> None:
    """As `StableDiffusion3Pipeline.load_lora_weights` reads it, with rank and alpha."""
    from diffusers.loaders import SD3LoraLoaderMixin
    from peft import get_peft_model_state_dict

    SD3LoraLoaderMixin.save_lora_weights(
        folder,
        transformer_lora_layers=get_peft_model_state_dict(network, adapter_name="default"),
        transformer_lora_adapter_metadata=network.peft_config["default"].to_dict(),
    )
