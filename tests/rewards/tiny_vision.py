"""A small random DINOv2 in the hub's format."""

from pathlib import Path

import torch


def write_vision(folder: Path) -> Path:
    """Its native image size is 28 x 28 pixels."""
    from transformers import Dinov2Config, Dinov2Model

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = Dinov2Model(Dinov2Config(**sizes, image_size=28, patch_size=14))
    model.save_pretrained(folder)
    return folder
