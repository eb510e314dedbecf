"""ImageReward, human preference for a picture given its text: a BLIP tuned on rankings,
arXiv:2304.05977."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from tandem.contracts import register_reward
from tandem.hub import align
from tandem.rewards.clip import texts_of
from tandem.rewards.images import pixels
from tandem.rewards.networks import Hosting, read, tokenizer
from tandem.rewards.signature import batched
from tandem.rewards.weights_file import refusing_others, weights_file
from tandem.types import Prompt

KEY = "reward.image_reward.function"
SIDE, LONGEST = 224, 35  # pixels of a picture, and tokens of a text
MEAN, STD = 0.16717362830052426, 1.0333394966054072  # of its output on the authors' pictures
TOWERS = ("vision_model.", "text_encoder.")
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


@batched
@register_reward("image_reward", judges="pictures")
class ImageReward:
    """(head(text with attention to the picture) - mean) / std: about -2 to 2, as published.

    The head is five linear layers without activations.
    """

    def __init__(
        self,
        path: str,
        weights: str,
        *,
        batch_size: int = 16,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        device: str = "auto",
    ) -> None:
        """`path`: a BLIP for retrieval, for its configuration and tokenizer; `weights`: a
        safetensors file of ImageReward with its original names."""
        from transformers import BlipConfig, BlipForImageTextRetrieval, CLIPImageProcessorPil

        self.hosting = Hosting(batch_size=batch_size, dtype=dtype, device=device)
        config = read(BlipConfig, path, f"{KEY}.path")
        config.vision_config.image_size = SIDE
        config.vision_config.layer_norm_eps = 1e-6  # of BLIP's own code
        self.tokenizer = tokenizer(path, f"{KEY}.path")
        self.images = CLIPImageProcessorPil()  # 224 pixels of the middle, by CLIP's mean and std
        model = BlipForImageTextRetrieval(config)
        self.head = load_weights(model, weights).to(self.hosting.place)
        align(model)
        model.requires_grad_(False).eval()
        self.model = model.to(self.hosting.place, self.hosting.torch_dtype)

    def __call__(self, outputs: Sequence[Tensor], prompts: Sequence[Prompt]) -> list[float]:
        rows = [*zip(outputs, texts_of(prompts), strict=True)]
        return [score for part in self.hosting.parts(rows) for score in self.scores(part)]

    @torch.no_grad()
    def scores(self, rows: Sequence[tuple[Tensor, str]]) -> list[float]:
        """Scores of pictures, uint8 [H, W, 3], for their texts."""
        from PIL import Image

        shown = [Image.fromarray(pixels(picture).numpy()) for picture, _ in rows]
        seen = self.images(shown, return_tensors="pt")["pixel_values"]
        form = {"padding": "max_length", "truncation": True, "max_length": LONGEST}
        given = self.tokenizer([text for _, text in rows], return_tensors="pt", **form)
        given = given.to(self.model.device)
        looked = self.model.vision_model(pixel_values=seen.to(self.model.device, self.model.dtype))
        states = looked.last_hidden_state
        said = self.model.text_encoder(
            input_ids=given["input_ids"],
            attention_mask=given["attention_mask"],
            encoder_hidden_states=states,
            encoder_attention_mask=states.new_ones(states.shape[:2], dtype=torch.long),
        )
        scores = self.head(said.last_hidden_state[:, 0].float())[:, 0]
        return ((scores - MEAN) / STD).tolist()


def load_weights(model: nn.Module, weights: str) -> nn.Sequential:
    """Put ImageReward's weights into the towers of a BLIP of the same sizes, and make its head.

    Raises ValueError for a pickle, and for weights of another model."""
    from safetensors.torch import load_file

    path = weights_file(f"{KEY}.weights", weights)
    with refusing_others(f"{KEY}.weights", weights):
        found = load_file(path)
        towers = rename({n.removeprefix("blip."): x for n, x in found.items()})
        told = model.load_state_dict(
            {n: x for n, x in towers.items() if n.startswith(TOWERS)}, strict=False
        )
        lacking = [name for name in told.missing_keys if name.startswith(TOWERS)]
        if lacking or told.unexpected_keys:
            raise KeyError(*(lacking or told.unexpected_keys)[:1])
        return read_head({n: x for n, x in found.items() if n.startswith("mlp.layers.")})


def read_head(weights: dict[str, Tensor]) -> nn.Sequential:
    """Linear layers in the order of the numbers in their names. Of any shape [...]."""
    numbers = sorted({int(name.split(".")[2]) for name in weights})
    layers = []
    for number in numbers:
        weight, bias = (weights[f"mlp.layers.{number}.{x}"] for x in ("weight", "bias"))
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": weight, "bias": bias})
        layers.append(layer)
    return nn.Sequential(*layers).requires_grad_(False).float()


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
