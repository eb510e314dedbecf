"""VideoReward of VideoAlign, human preference for a film given its text: a Qwen2-VL tuned on
rankings, arXiv:2501.13918."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from tandem.contracts import register_reward
from tandem.contracts.parts import expand_home
from tandem.hub import locate, read_processor
from tandem.rewards.asked import Asked
from tandem.rewards.films import select_frames
from tandem.rewards.networks import Hosting, fill, read
from tandem.rewards.signature import batched
from tandem.rewards.weights_file import refusing_others, weights_file
from tandem.types import is_film

KEY = "reward.video_align.function"
RATED = {
    "VQ": "<|VQ_reward|>",
    "MQ": "<|MQ_reward|>",
    "TA": "<|TA_reward|>",
}  # read at these tokens
HEAD = "rm_head.weight"
TUNED = "base_model.model."  # prefix of names in peft models with adapters
LEAST = 128 * 28 * 28  # pixels of a frame


@batched
@register_reward("video_align", judges="pictures", of_films=True)
class VideoAlign(Asked):
    """Visual quality (VQ), motion quality (MQ), alignment with the text (TA), or their sum.

    One matrix reads each at its own token of the question. Each is normalised by the mean and
    standard deviation of its authors: about -3 to 3.
    """

    judged = "video"

    def __init__(
        self,
        path: str,
        weights: str,
        settings: str,
        *,
        question: str,  # question to the model; contains each token of `RATED`
        part: Literal["overall", "VQ", "MQ", "TA"] = "overall",
        frames: int = 10,
        area: int = 448 * 448,
        batch_size: int = 4,
        dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16",
        device: str = "auto",
    ) -> None:
        """`path`: the base model, for its configuration and processor; `weights`: a safetensors
        file of all weights, with or without separate adapters; `settings`: its model_config.json;
        `question`: contains each token of `RATED`; `frames`: evenly spread frames used per film,
        rounded to an even number;
        `area`: largest number of pixels of a frame."""
        from safetensors.torch import load_file
        from transformers import AutoConfig

        if odd := [token for token in RATED.values() if question.count(token) != 1]:
            raise ValueError(f"{KEY}.question must contain {odd[0]} once, where the head reads")
        if frames < 2:
            raise ValueError(f"{KEY}.frames={frames}: set at least 2")
        self.question, self.frames, self.area = question, frames, area
        self.parts = tuple(RATED) if part == "overall" else (part,)
        self.hosting = Hosting(batch_size=batch_size, dtype=dtype, device=device)
        config = read(AutoConfig, path, f"{KEY}.path")
        self.processor = read_processor(locate(path, key=f"{KEY}.path"), config)
        self.tokenizer = self.processor.tokenizer
        self.tokenizer.add_special_tokens({"additional_special_tokens": [*RATED.values()]})
        config.get_text_config().vocab_size = len(self.tokenizer)
        scale, self.spread = read_settings(settings)
        file = weights_file(f"{KEY}.weights", weights)
        with refusing_others(f"{KEY}.weights", weights):
            found = merge_adapters(load_file(file), scale)
            self.head = found.pop(HEAD).float().to(self.hosting.place)
            self.model = fill(config, found, self.hosting)

    @torch.no_grad()
    def scores(self, rows: Sequence[tuple[Tensor, str]]) -> list[float]:
        """Scores of films, uint8 [F, H, W, 3], for their texts."""
        asked = [self.ask(film, text) for film, text in rows]
        given = self.gather(asked)
        states = self.model.model(**given).last_hidden_state.float()
        total = torch.zeros(len(rows), device=self.hosting.place)
        for name in self.parts:
            number, (mean, std) = [*RATED].index(name), self.spread[name]
            rated = given["input_ids"] == self.tokenizer.convert_tokens_to_ids(RATED[name])
            total += (states[rated] @ self.head[number] - mean) / std
        return total.tolist()

    def ask(self, film: Tensor, text: str) -> dict[str, Tensor]:
        """The model's input, one row: two frames are one time step."""
        if not is_film(film) or len(film) < 2:
            raise ValueError(f"a film must have at least 2 frames, not {[*film.shape]}")
        pairs = min(round(self.frames / 2), len(film) // 2)  # as its authors round
        shown = select_frames(film, 2 * pairs)
        patches, grid = self.cut(self.resize(shown))
        count = len(patches) // self.processor.image_processor.merge_size**2
        words = self.put(text).replace(self.mark, self.mark * count)
        ids = self.tokenizer(words, add_special_tokens=self.template is None, return_tensors="pt")
        seen = (ids["input_ids"] == self.tokenizer.convert_tokens_to_ids(self.mark)).long()
        return {
            **{name: ids[name] for name in ("input_ids", "attention_mask")},
            "mm_token_type_ids": 2 * seen,  # 2: of a film
            "pixel_values_videos": patches,
            "video_grid_thw": torch.tensor([grid]),
        }

    @property
    def mark(self) -> str:
        return self.processor.video_token

    def resize(self, frames: Tensor) -> Tensor:
        """uint8 [F, H, W, 3] -> 0 to 255, float32 [F, 3, H', W'], sides in whole patches."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        own, (high, wide) = self.processor.image_processor, frames.shape[1:3]
        limits = {"min_pixels": min(LEAST, self.area), "max_pixels": self.area}
        size = smart_resize(high, wide, own.patch_size * own.merge_size, **limits)
        levels = frames.movedim(-1, 1).float()
        shown = interpolate(levels, size, mode="bicubic", antialias=True, align_corners=False)
        return shown.round().clamp(0, 255)

    def cut(self, frames: Tensor) -> tuple[Tensor, tuple[int, int, int]]:
        """[F, 3, H, W] -> spatio-temporal patches [N, 3 * t * p * p], grouped by token, and their
        numbers along time, height and width."""
        own = self.processor.image_processor
        mean, std = (torch.tensor(x).view(3, 1, 1) for x in (own.image_mean, own.image_std))
        deep, side, merged = own.temporal_patch_size, own.patch_size, own.merge_size
        count, _, high, wide = frames.shape
        grid = (count // deep, high // side, wide // side)
        tokens = (grid[1] // merged, merged, side, grid[2] // merged, merged, side)
        parts = ((frames / 255 - mean) / std).reshape(grid[0], deep, 3, *tokens)
        flat = parts.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(-1, 3 * deep * side * side)
        return flat, grid


def merge_adapters(found: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Weights by the names of the base model: W + scale B A for those with adapters.

    Of any shapes [...]."""
    own = {name.removeprefix(TUNED): x for name, x in found.items()}
    merged = {n.replace(".base_layer.", "."): x for n, x in own.items() if ".lora_" not in n}
    for name, a in own.items():
        layer, sign, rest = name.partition(".lora_A.")
        if sign:
            weight, b = merged[f"{layer}.weight"], own[f"{layer}.lora_B.{rest}"]
            change = scale * (b.float() @ a.float())
            merged[f"{layer}.weight"] = (weight.float() + change).to(weight.dtype)
    return merged


def read_settings(given: str) -> tuple[float, dict[str, tuple[float, float]]]:
    """From model_config.json: the adapter scale; mean and standard deviation of each part.

    Raises ValueError for a file without them.
    """
    try:
        said = json.loads(expand_home(given).read_text(encoding="utf-8"))
        lora, known = said["peft_lora_config"], said["inference_config"]
        scale = lora["lora_alpha"] / lora["lora_r"] ** (0.5 if lora["use_rslora"] else 1)
        return scale, {name: (known[f"{name}_mean"], known[f"{name}_std"]) for name in RATED}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{KEY}.settings={given} is not a model_config.json of VideoAlign: "
            f"{type(error).__name__}: {error}"
        ) from None
