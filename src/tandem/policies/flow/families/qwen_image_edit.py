"""Qwen-Image-Edit (2509, 2511), loaded from a folder of `QwenImageEditPlusPipeline`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tandem.contracts import declare
from tandem.hub import without_films
from tandem.policies.flow.families import texts
from tandem.policies.flow.families.pipelines import Family
from tandem.policies.flow.families.qwen_image import QwenImage
from tandem.policies.flow.records import Condition, PromptInput

if TYPE_CHECKING:
    from diffusers import QwenImageEditPlusPipeline

PART = "processor"


@declare(shows=range(1, 4))
class QwenImageEdit(QwenImage):
    """Prompts are Qwen2.5-VL states of text and images, resized to the pipeline's area;
    `max_sequence_length` counts image tokens too."""

    family = Family(
        pipeline="QwenImageEditPlusPipeline",
        transformer="QwenImageTransformer2DModel",
        vae="AutoencoderKLQwenImage",
        model="qwen_image_edit",
    )
    readers = ("text_encoder", "tokenizer", PART)

    def condition(
        self, pipeline: QwenImageEditPlusPipeline, asked: PromptInput, device: torch.device
    ) -> Condition:
        from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as own

        seen = []
        for picture in asked.images:
            width, height = own.calculate_dimensions(
                own.CONDITION_IMAGE_SIZE, picture.width / picture.height
            )
            (image,) = pipeline.image_processor.numpy_to_pil(picture.load().numpy()[None] / 255)
            seen.append(pipeline.image_processor.resize(image, height, width))
        (states,), _ = pipeline.encode_prompt(prompt=asked.text, image=seen, device=device)
        read = texts.pad_states(states[: self.max_sequence_length], self.max_sequence_length)
        return read | self.look_at(asked, device)

    def own_readers(self) -> dict[str, object]:
        """The processor without its video part, which requires torchvision."""
        from transformers import Qwen2VLProcessor

        return {"processor": without_films(Qwen2VLProcessor).from_pretrained(self.folder / PART)}
