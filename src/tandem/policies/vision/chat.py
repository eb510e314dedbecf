"""Prompts with images as token ids: each image mark becomes the image tokens of its image."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.policies.language.chat import Chat, ChatOptions
from tandem.policies.language.records import PromptIds
from tandem.policies.vision.processor import Processed
from tandem.types import IMAGE, Picture, Prompt

if TYPE_CHECKING:
    from transformers import ProcessorMixin


class VisionChat(Chat):
    """A processor with its chat template."""

    def __init__(self, processor: ProcessorMixin, talk: ChatOptions, processed: Processed) -> None:
        tokenizer = processor.tokenizer
        tokenizer.chat_template = processor.chat_template or tokenizer.chat_template
        super().__init__(tokenizer, talk)
        processor.chat_template = tokenizer.chat_template  # which it saves over the tokenizer's
        self.processor, self.processed = processor, processed
        self.mark = processor.image_token  # marks an image in the output of a chat template

    def text(self, prompt: Prompt) -> str:
        """The text of any chat; an image is the processor's own mark in it."""
        if prompt.text is None and self.template is not None:
            turns = [self.as_parts(turn) for turn in self.question(prompt)]
            return self.render(turns, self.tools_of(prompt))
        return super().text(prompt).replace(IMAGE, self.mark)

    def render(
        self, messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping] = ()
    ) -> str:
        """The same. Templates may read contents in parts alone, so a text is one part, in which
        `<image>` is text."""
        parts = (
            {**one, "content": [{"type": "text", "text": one["content"]}]}
            if isinstance(one["content"], str)
            else one
            for one in messages
        )
        return super().render([*parts], tools)

    def encode(
        self, prompts: Sequence[Prompt], texts: Sequence[str] | None = None
    ) -> list[list[int]]:
        """Token ids, with the image tokens of every image."""
        texts = [self.text(prompt) for prompt in prompts] if texts is None else texts
        expanded = [self.expand(*pair) for pair in zip(prompts, texts, strict=True)]
        encoded, marked = super().encode(prompts, expanded), super().encode(prompts, texts)
        return [
            PromptIds(ids, prompt.images, marked=own, banned=self.banned)
            for ids, own, prompt in zip(encoded, marked, prompts, strict=True)
        ]

    def expand(self, prompt: Prompt, text: str) -> str:
        """Its text with image tokens. Raises ValueError if marks and images do not match."""
        pieces = text.split(self.mark)
        if len(pieces) != len(prompt.images) + 1:
            raise ValueError(
                f"prompt {prompt.id} of {prompt.source} has {len(prompt.images)} images, but its "
                f"text has {len(pieces) - 1} image marks ({self.mark})"
            )
        shown = [*map(self.processed.text, prompt.images), ""]
        return "".join(a + b for a, b in zip(pieces, shown, strict=True))

    def refusal(self, prompt: Prompt) -> str | None:
        """Why the template, the marks or the processor reject a prompt; None: accepted."""
        said = super().refusal(prompt)
        if said is not None:
            return said
        text = self.text(prompt)
        found = text.count(self.mark)
        if found != len(prompt.images):
            return f"has {len(prompt.images)} images, but {found} image marks ({self.mark})"
        try:
            self.expand(prompt, text)
        except ValueError as error:
            return f"has an image that the image processor rejects: {error}"
        return None

    def images(self, prompts: Sequence[Prompt]) -> tuple[tuple[Picture, ...], ...]:
        return tuple(prompt.images for prompt in prompts)

    def with_images(
        self, ids: list[int], images: Sequence[Picture] | None, prompt: Sequence[int] = ()
    ) -> list[int]:
        """The same. Images of the prompt are marked, for servers; those that an environment shows
        are not: no server receives them."""
        marked = [*prompt.marked, *ids[len(prompt) :]] if images else ()
        return PromptIds(ids, images or (), marked=marked, banned=self.banned)

    def with_pictures(self, text: str, left: Iterator[Picture]) -> str:
        """The text, each mark replaced by the image tokens of the next image in `left`."""
        first, *pieces = text.split(self.mark)
        return first + "".join(self.processed.text(next(left)) + piece for piece in pieces)

    def with_marks(self, content: str) -> str:
        """The text with the processor's marks in place of ours."""
        return content.replace(IMAGE, self.mark)

    @staticmethod
    def as_parts(turn: Mapping[str, str]) -> dict[str, object]:
        """A message in the form that templates of vision-language models read: its texts and images
        in order."""
        pieces = (piece for piece in re.split(f"({re.escape(IMAGE)})", turn["content"]) if piece)
        parts = [{"type": "image"} if p == IMAGE else {"type": "text", "text": p} for p in pieces]
        return {**turn, "content": parts}

    def save(self, folder: str | Path) -> None:
        self.processor.save_pretrained(folder)
