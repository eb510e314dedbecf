"""HPSv2, human preference for a picture given its text: a CLIP model tuned on rankings,
arXiv:2306.09341."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from tandem.contracts import register_reward
from tandem.rewards.clip import Clip, texts_of
from tandem.rewards.images import pixels
from tandem.rewards.networks import Hosting
from tandem.rewards.signature import batched
from tandem.rewards.weights_file import refusing_others, weights_file
from tandem.types import Prompt

KEY = "reward.hpsv2.function"
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


@batched
@register_reward("hpsv2", judges="pictures")
class Hpsv2:
    """cos(picture, text): about 0.2 to 0.35, as published (v2 and v2.1).

    A picture that is not square is padded with black; CLIP's own processor would crop it.
    """

    def __init__(
        self,
        path: str,
        *,
        weights: str | None = None,
        processor: str | None = None,
        batch_size: int = 16,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        device: str = "auto",
    ) -> None:
        """`weights`: a safetensors file with OpenCLIP's names that replaces the weights at `path`;
        None: those are HPSv2's already."""
        hosting = Hosting(batch_size=batch_size, dtype=dtype, device=device)
        self.clip = Clip(path, processor, hosting, key=KEY)
        if weights is not None:
            load_weights(self.clip.model, weights)

    def __call__(self, outputs: Sequence[Tensor], prompts: Sequence[Prompt]) -> list[float]:
        return self.clip.cosines([*map(square, outputs)], texts_of(prompts))


def load_weights(model: torch.nn.Module, weights: str) -> None:
    """Put OpenCLIP's weights into a transformers CLIPModel of the same sizes.

    Raises ValueError for a pickle, and for weights of another model."""
    from safetensors.torch import load_file

    path = weights_file(f"{KEY}.weights", weights, inside="['state_dict']")
    with refusing_others(f"{KEY}.weights", weights):
        model.load_state_dict(rename(load_file(path)))


def square(picture: Tensor) -> Tensor:
    """A picture in the middle of the smallest square, on black: uint8 [H, W, 3] -> [S, S, 3]."""
    high, wide, _ = pixels(picture).shape
    side = max(high, wide)
    top, left = (side - high) // 2, (side - wide) // 2
    around = [0, 0, left, side - wide - left, top, side - high - top]
    return torch.nn.functional.pad(pixels(picture), around)


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
            renamed |= split_joined(rename_in_tower(name), weight)
    return renamed


def rename_in_tower(name: str) -> str:
    """The name in CLIPModel of a tower's weight; of a joined one, up to `attn.in_proj_...`."""
    tower = next(prefix for prefix in TOWERS if name.startswith(prefix))
    inside = name.removeprefix(tower)
    for old, new in NAMES:
        inside = re.sub(old, new, inside)
    return TOWERS[tower] + inside


def split_joined(name: str, weight: Tensor) -> dict[str, Tensor]:
    """A weight by its name, those of queries, keys and values apart: [3 D, ...] -> three."""
    joined = JOINED.fullmatch(name)
    if joined is None:
        return {name: weight}
    own = zip("qkv", weight.chunk(3), strict=True)
    return {f"{joined[1]}.self_attn.{x}_proj.{joined[2]}": part for x, part in own}
