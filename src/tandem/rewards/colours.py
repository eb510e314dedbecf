"""Colours of objects in a picture, named by CLIP as in GenEval, arXiv:2310.11513."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from tandem.rewards.clauses import COLOURS
from tandem.rewards.clip import Clip, unit
from tandem.rewards.images import pixels
from tandem.rewards.networks import Hosting
from tandem.rewards.objects import Found, cut_out
from tandem.rewards.result import HERE

PUT = ("a photo of a {} {}", "a photo of a {}-colored {}", "a photo of a {} object")


class ColourNamer:
    """Names the colour, one of GenEval's ten, whose texts are nearest to an object's pixels."""

    def __init__(
        self,
        path: str,  # a CLIP model: a folder, or a name on the hub
        *,
        processor: str | None = None,
        batch_size: int = 16,  # pictures per pass of the model; affects memory only
        # Dtype of the model's weights.
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        device: str = "auto",  # device of the model; auto: the one that this rank trains on
    ) -> None:
        hosting = Hosting(batch_size=batch_size, dtype=dtype, device=device)
        self.clip = Clip(path, processor, hosting, key=f"{HERE}function.colours")
        self.known: dict[str, Tensor] = {}  # name of an object -> its texts, one for each colour

    def __call__(
        self, pictures: Sequence[Tensor], found: Sequence[Sequence[Found]], names: Sequence[str]
    ) -> list[list[str]]:
        """A colour for each object, in one pass over all crops. pictures: uint8 [H, W, 3], with
        objects of one name in each."""
        pairs = zip(pictures, found, strict=True)
        parts = [cut_out(pixels(picture), one) for picture, own in pairs for one in own]
        seen = self.clip.embed_pictures(parts).split([len(own) for own in found])
        near = [own @ self.texts(name).T for own, name in zip(seen, names, strict=True)]
        return [[COLOURS[place] for place in own.argmax(1).tolist()] for own in near]

    def texts(self, name: str) -> Tensor:
        """The normalised mean CLIP embedding of three texts of each colour: [colours, D]."""
        if name not in self.known:
            said = [put.format(colour, name) for colour in COLOURS for put in PUT]
            each = self.clip.embed_texts(said).view(len(COLOURS), len(PUT), -1)
            self.known[name] = unit(torch.mean(each, 1))
        return self.known[name]
