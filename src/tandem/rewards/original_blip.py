"""The names of BLIP's own weights in the BLIP of transformers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

BUFFERS = ("position_ids",)  # that are no weights
NAMES = (  # in this order: (name in BLIP, name in transformers); the text model has the same ones
    (r"^visual_encoder\.cls_token$", "vision_model.embeddings.class_embedding"),
    (r"^visual_encoder\.pos_embed$", "vision_model.embeddings.position_embedding"),
    (r"^visual_encoder\.patch_embed\.proj\.", "vision_model.embeddings.patch_embedding."),
    (r"^visual_encoder\.norm\.", "vision_model.post_layernorm."),
    (r"^visual_encoder\.blocks\.(\d+)\.norm", r"vision_model.encoder.layers.\1.layer_norm"),
    (r"^visual_encoder\.blocks\.(\d+)\.attn\.proj\.", r"vision_model.encoder.layers.\1.proj."),
    (r"^visual_encoder\.blocks\.(\d+)\.attn\.", r"vision_model.encoder.layers.\1.self_attn."),
    (r"^visual_encoder\.blocks\.", "vision_model.encoder.layers."),
    (r"\.(\d+)\.proj\.", r".\1.self_attn.projection."),
)


def rename(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state of the towers of BLIP as one of transformers. Of any shape [...]."""
    renamed = {}
    for name, weight in weights.items():
        if name.rpartition(".")[2] in BUFFERS:
            continue
        for old, new in NAMES:
            name = re.sub(old, new, name)
        renamed[name] = weight
    return renamed
