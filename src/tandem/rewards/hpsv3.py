"""HPSv3, human preference for a picture given its text: a vision-language model tuned on
rankings, arXiv:2508.03789."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from tandem.contracts import register_reward
from tandem.contracts.parts import expand_home
from tandem.hub import locate, read_processor
from tandem.rewards.asked import Asked
from tandem.rewards.images import pixels
from tandem.rewards.networks import Hosting, fill, read
from tandem.rewards.result import Missing
from tandem.rewards.signature import batched
from tandem.rewards.weights_file import refusing_others
from tandem.types import Prompt

KEY = "reward.hpsv3.function"
RATED = "<|Reward|>"  # the token at which the head reads the hidden state
HEAD = "rm_head."
LAYERS = (0, 3, 5)  # layers of the head with weights


@batched
@register_reward("hpsv3", judges="pictures")
class HpsV3(Asked):
    """The mean of the score that the head predicts at one token of the question: about 0 to 12.

    The head also predicts a spread, which is ignored as by its authors.
    """

    def __init__(
        self,
        path: str,
        weights: str,
        *,
        question: str,  # question to the model; contains `RATED`
        area: int = 448 * 448,
        batch_size: int = 8,
        dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16",
        device: str = "auto",
    ) -> None:
        """`path`: the base model, for its configuration and processor; `weights`: a safetensors
        file of the whole model and its head; `question`: contains `RATED`; `area`: pixels that each
        picture is resized to, up to a patch."""
        from transformers import AutoConfig

        self.question, self.area = question, area
        self.hosting = Hosting(batch_size=batch_size, dtype=dtype, device=device)
        config = read(AutoConfig, path, f"{KEY}.path")
        self.processor = read_processor(locate(path, key=f"{KEY}.path"), config)
        self.tokenizer = self.processor.tokenizer
        self.tokenizer.add_special_tokens({"additional_special_tokens": [RATED]})
        if RATED not in question:
            raise ValueError(f"{KEY}.question must contain {RATED}, where the head reads")
        config.get_text_config().vocab_size = len(self.tokenizer)
        self.model, self.head = load_weights(config, weights, self.hosting)

    def __call__(
        self, outputs: Sequence[Tensor], prompts: Sequence[Prompt]
    ) -> list[float | Missing]:
        return super().__call__([*map(self.resize, outputs)], prompts)

    @torch.no_grad()
    def scores(self, rows: Sequence[tuple[Tensor, str]]) -> list[float]:
        """Scores of pictures, uint8 [H, W, 3], for their texts."""
        asked = [self.ask(picture, text) for picture, text in rows]
        given = self.gather(asked)
        states = self.model.model(**given).last_hidden_state
        rated = given["input_ids"] == self.tokenizer.convert_tokens_to_ids(RATED)
        x = states[rated].float()
        for number, (weight, bias) in enumerate(self.head):
            x = linear(x.relu() if number else x, weight, bias)
        return x[:, 0].tolist()

    def resize(self, picture: Tensor) -> Tensor:
        """The picture with sides in whole patches and about this area: uint8 [H, W, 3]."""
        from PIL import Image
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        own, (high, wide, _) = self.processor.image_processor, pixels(picture).shape
        limits = {"min_pixels": self.area, "max_pixels": self.area}
        size = smart_resize(high, wide, own.patch_size * own.merge_size, **limits)
        image = Image.fromarray(pixels(picture).numpy()).resize(size[::-1])
        return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(*size, 3)


def load_weights(
    config: object, weights: str, hosting: Hosting
) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """The model of a configuration with the weights of a file, and weight [out, in] and bias [out]
    of each layer of its head.

    Raises ValueError for a pickle, and for weights of another model."""
    from safetensors.torch import load_file

    if Path(weights).suffix != ".safetensors":
        raise ValueError(f"{KEY}.weights={weights} is not a .safetensors; use HPSv3.safetensors")
    with refusing_others(f"{KEY}.weights", weights):
        found = load_file(expand_home(weights))
        head = [
            tuple(found[f"{HEAD}{n}.{x}"].float().to(hosting.place) for x in ("weight", "bias"))
            for n in LAYERS
        ]
        own = {name: x for name, x in found.items() if not name.startswith(HEAD)}
        return fill(config, own, hosting), head
