"""The names of OpenCLIP's weights in a CLIPModel of transformers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

TOWERS = {"visual.": "vision_model.", "": "text_model."}
NAMES = (  # in this order: (name in OpenCLIP, name in transformers), within a tower
    (r"^conv1\.", "embeddings.patch_embedding."),
    (r"^class_embedding$", "embeddings.class_embedding"),
    (r"^token_embedding\.", "embeddings.token_embedding."),
    (r"^positional_embedding$", "embeddings.position_embedding.weight"),
    (r"^ln_pre\.", "pre_layrnorm."),
    (r"^ln_post\.", "post_layernorm."),
    (r"^ln_final\.", "final_layer_norm."),
    (r"^transformer\.resblocks\.", "encoder.layers."),
    (r"\.ln_1\.", ".layer_norm1."),
    (r"\.ln_2\.", ".layer_norm2."),
    (r"\.mlp\.c_fc\.", ".mlp.fc1."),
    (r"\.mlp\.c_proj\.", ".mlp.fc2."),
    (r"\.attn\.out_proj\.", ".self_attn.out_proj."),
)
PROJECTIONS = {
    "visual.proj": "visual_projection.weight",
    "text_projection": "text_projection.weight",
}
JOINED = re.compile(r"^(.*)\.attn\.in_proj_(weight|bias)$")  # of queries, keys and values
BUFFERS = ("attn_mask",)  # that are no weights


def rename(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state of OpenCLIP's standard model as one of transformers' CLIPModel.

    What both keep on different sides of a product is transposed: a projection [D, P] -> [P, D].
    """
    renamed: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if name in BUFFERS:
            continue
        if name in PROJECTIONS:
            renamed[PROJECTIONS[name]] = weight.T.contiguous()
        elif name == "logit_scale":
            renamed[name] = weight
        else:
            renamed |= split(place(name), weight)
    return renamed


def place(name: str) -> str:
    """The name in CLIPModel of a tower's weight; of a joined one, up to `attn.in_proj_...`."""
    tower = next(prefix for prefix in TOWERS if name.startswith(prefix))
    inside = name.removeprefix(tower)
    for old, new in NAMES:
        inside = re.sub(old, new, inside)
    return TOWERS[tower] + inside


def split(name: str, weight: Tensor) -> dict[str, Tensor]:
    """A weight by its name, those of queries, keys and values apart: [3 D, ...] -> three."""
    joined = JOINED.fullmatch(name)
    if joined is None:
        return {name: weight}
    own = zip("qkv", weight.chunk(3), strict=True)
    return {f"{joined[1]}.self_attn.{x}_proj.{joined[2]}": part for x, part in own}
