"""CLIP, which embeds pictures and texts in one space: shared by the rewards that use it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from tandem.contracts.parts import expand_home
from tandem.rewards.images import pixels
from tandem.rewards.networks import Hosting, each_once, network, read, tokenizer
from tandem.types import Prompt

PROCESSOR = "preprocessor_config.json"
LONGEST = 77  # tokens of a text; longer ones are truncated


class Clip:
    """A transformers CLIPModel with the preprocessing of pictures and texts."""

    def __init__(self, path: str, processor: str | None, hosting: Hosting, *, key: str) -> None:
        """Load the weights, by settings under `key`. `processor`: path of the processor files if
        they are not in `path`; None: in `path`."""
        from transformers import CLIPImageProcessorPil, CLIPModel

        self.hosting = hosting
        self.model = network(CLIPModel, path, f"{key}.path", hosting)
        own = processor is None or (expand_home(path) / PROCESSOR).is_file()
        files, named = (path, f"{key}.path") if own else (processor, f"{key}.processor")
        if Path(files).is_dir() and not (Path(files) / PROCESSOR).is_file():
            raise ValueError(f"{named}={files} holds no {PROCESSOR}; set {key}.processor")
        self.images = read(CLIPImageProcessorPil, files, named)
        self.threads = ThreadPoolExecutor()  # Pillow releases the interpreter lock while it resizes
        self.tokenizer = tokenizer(files, named)

    @property
    def scale(self) -> float:
        """The factor by which CLIP multiplies a cosine: the inverse of its learnt temperature."""
        return self.model.logit_scale.exp().item()

    @torch.no_grad()
    def cosines(self, pictures: Sequence[Tensor], texts: Sequence[str]) -> list[float]:
        """The cosine of each picture with its own text. pictures: uint8 [H, W, 3]."""
        if not pictures:
            return []
        of_pictures, of_texts = self.embed_pictures(pictures), each_once(texts, self.embed_texts)
        return (of_pictures * of_texts).sum(1).tolist()

    @torch.no_grad()
    def embed_pictures(self, pictures: Sequence[Tensor]) -> Tensor:
        """[N, D] of length 1, of pictures uint8 [H, W, 3]"""
        return torch.cat([self._embed(part) for part in self.hosting.parts(pictures)])

    def _embed(self, pictures: Sequence[Tensor]) -> Tensor:
        """[N, D] of length 1"""
        given = torch.cat(list(self.threads.map(self._preprocess, pictures)))
        given = given.to(self.model.device, self.model.dtype)
        return unit(self.model.get_image_features(pixel_values=given).pooler_output)

    def _preprocess(self, picture: Tensor) -> Tensor:
        """[1, 3, side, side]"""
        from PIL import Image

        shown = Image.fromarray(pixels(picture).numpy())
        return self.images(shown, return_tensors="pt")["pixel_values"]

    @torch.no_grad()
    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        """[N, D] of length 1"""
        return torch.cat([self._read(part) for part in self.hosting.parts(texts)])

    def _read(self, texts: Sequence[str]) -> Tensor:
        """[N, D] of length 1. Padding does not affect the end token: attention is causal."""
        form = {"padding": "max_length", "truncation": True, "max_length": LONGEST}
        given = self.tokenizer(list(texts), return_tensors="pt", **form).to(self.model.device)
        ids, mask = given["input_ids"], given["attention_mask"]
        return unit(self.model.get_text_features(input_ids=ids, attention_mask=mask).pooler_output)


def unit(features: Tensor) -> Tensor:
    """Features at length 1: [N, D] -> [N, D]."""
    return torch.nn.functional.normalize(features.float(), dim=-1)


def texts_of(prompts: Sequence[Prompt]) -> list[str]:
    """The texts of prompts without image marks, as a flow model reads them. Raises ValueError for a
    chat, which has none."""
    for prompt in prompts:
        if prompt.text is None:
            raise ValueError(f"prompt {prompt.id} of {prompt.source} is a chat, not a text")
    return [prompt.plain_text for prompt in prompts]
