"""The colours of objects in a picture, by CLIP: as GenEval names them, arXiv:2310.11513."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from tandem.rewards.clip import Clip, unit
from tandem.rewards.geneval import COLOURS
from tandem.rewards.images import pixels
from tandem.rewards.networks import Hosting
from tandem.rewards.objects import Found, cut_out
from tandem.rewards.result import HERE

PUT = ("a photo of a {} {}", "a photo of a {}-colored {}", "a photo of a {} object")


class ColourNamer:
    """The colour whose texts are nearest to what is cut out of a picture, out of GenEval's ten."""

    def __init__(
        self,
        path: str,
        *,
        processor: str | None = None,
        batch_size: int = 16,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        device: str = "auto",
    ) -> None:
        hosting = Hosting(batch_size=batch_size, dtype=dtype, device=device)
        self.clip = Clip(path, processor, hosting, key=f"{HERE}function.colours")
        self.known: dict[str, Tensor] = {}  # name of an object -> its texts, one for each colour

    def __call__(self, picture: Tensor, found: Sequence[Found], name: str) -> list[str]:
        """picture: uint8 [H, W, 3]; a colour for each of `found`, which are of that name."""
        parts = [cut_out(pixels(picture), one) for one in found]
        near = self.clip.embed_pictures(parts) @ self.texts(name).T  # [found, colours]
        return [COLOURS[place] for place in near.argmax(1).tolist()]

    def texts(self, name: str) -> Tensor:
        """The mean of what CLIP makes of three texts of each colour, at length 1: [colours, D]."""
        if name not in self.known:
            said = [put.format(colour, name) for colour in COLOURS for put in PUT]
            each = self.clip.embed_texts(said).view(len(COLOURS), len(PUT), -1)
            self.known[name] = unit(torch.mean(each, 1))
        return self.known[name]
