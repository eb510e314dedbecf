"""The vision-language policy: any image-text-to-text model of transformers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from torch import nn

from tandem import distributed
from tandem.contracts import positive
from tandem.hub import OF_FILMS, align, films_of, hide_bars, locate, read_processor
from tandem.policies.language.critic import Kind
from tandem.policies.language.policy import LanguagePolicy
from tandem.policies.language.pretrained import (
    Build,
    Packing,
    Pretrained,
    build_pretrained,
    check_memory,
    read_from,
    ready,
)
from tandem.policies.language.records import Description
from tandem.policies.lora import Lora, add_adapters, places_of
from tandem.policies.quantization import Quantization
from tandem.policies.request import Request
from tandem.policies.vision.chat import VisionChat
from tandem.policies.vision.components import COMPONENTS, Component, check_features, train_only
from tandem.policies.vision.processor import Processed
from tandem.policies.vision.tower import PictureInputs

log = logging.getLogger(__name__)

TAUGHT = frozenset({"teacher_logp", "divergence"})  # a teacher would have to read images, too


class VisionLanguagePolicy(LanguagePolicy):
    """Reads texts and images, and writes tokens. It has no weights before `load`."""

    sees = True

    def __init__(
        self,
        *,
        path: str | None = None,
        build: Build | None = None,
        target_components: Sequence[Component] = ("language",),
        dtype: Literal["float32", "bfloat16", "auto"] = "float32",
        # A kind of transformers, such as sdpa or flash_attention_2; null: its own choice.
        attn_implementation: str | None = None,
        gradient_checkpointing: bool = False,
        mlp_tile: Annotated[int, positive] | None = None,
        packing: Packing = "auto",
        lora: Lora | None = None,
        quantization: Quantization | None = None,
        critic: Kind = "head",  # head: on the policy's own states; or a network of its own
        system_prompt: str | None = None,  # put before every conversation; null: none
        enable_thinking: bool | None = None,  # passed to the chat template; null: not passed
        chat_template: str | None = None,  # a file that replaces the chat template of the tokenizer
        # Logits of a chunk of the head: positions times vocabulary; affects memory only.
        logit_budget: int = 2**26,
        # Tokens of a pass without gradient; affects memory only.
        token_budget: int = 2**14,
    ) -> None:
        """`path` (folder or hub name) wins over `build`, which makes a model and its processor;
        `target_components` are trained."""
        super().__init__(
            path=path,
            build=build,
            dtype=dtype,
            attn_implementation=attn_implementation,
            gradient_checkpointing=gradient_checkpointing,
            mlp_tile=mlp_tile,
            packing=packing,
            share_prompts=False,
            lora=lora,
            quantization=quantization,
            critic=critic,
            system_prompt=system_prompt,
            enable_thinking=enable_thinking,
            chat_template=chat_template,
            logit_budget=logit_budget,
            token_budget=token_budget,
        )
        self.target_components = tuple(target_components)
        self.films: str | None = None  # the processor's settings for videos, unparsed
        self.check()

    def check(self) -> None:
        """Raise ValueError for components that are unknown or do not fit the other options."""
        odd = [name for name in self.target_components if name not in COMPONENTS]
        if odd or not self.target_components:
            raise ValueError(
                f"model.target_components={[*self.target_components]}: choose from "
                f"{', '.join(COMPONENTS)}"
            )
        if self.lora is not None and self.target_components != ("language",):
            raise ValueError(
                f"model.lora adapts the language layers alone, but "
                f"model.target_components={[*self.target_components]}; set "
                "model.lora=null, or model.target_components=[language]"
            )
        if self.kind_of_critic == "separate":
            raise ValueError(
                "model.critic=separate would be a copy that reads no images; set model.critic=head"
            )

    @property
    def frozen_tower(self) -> bool:
        """Whether the image features that the language layers read never change."""
        return self.target_components == ("language",)

    def describe(self, request: Request) -> Description:
        said = super().describe(request)
        return replace(said, provides=said.provides - TAUGHT)

    def read_weights(self) -> Pretrained:
        """The model, with only its target components trained, and its tokenizer."""
        hide_bars()
        if self.path is not None:
            model, _ = read_from(self.path, self.numerics, self.choose_class)
            place = locate(self.path, key="model.path")
            processor, self.films = read_processor(place, model.config), films_of(place)
        elif self.build is not None:
            model, processor = build_pretrained(self.build, self.numerics)
        else:
            raise ValueError("model.path is null; set it to a vision-language model")
        align(model)
        check_memory(model, "model.path")
        check_features(model)
        ready(model, self.numerics)
        self.processor = processor
        self.processed = Processed(processor, model.config.image_token_id)
        return Pretrained(model, processor.tokenizer)

    def save(self, folder: str | Path) -> None:
        """Save as any language model, with the loaded settings for videos."""
        super().save(folder)
        if self.films is not None and distributed.is_first():
            (Path(folder) / OF_FILMS).write_text(self.films, encoding="utf-8")

    def notify(self, event: Literal["update", "iteration"]) -> None:
        """Clear cached image features after an iteration."""
        super().notify(event)
        if event == "iteration":
            for scorer in filter(None, (self.scorer, self.reference)):
                scorer.inputs.forget()

    @staticmethod
    def choose_class(config: Any) -> type:
        """The class that loads an image-text-to-text model."""
        from transformers import AutoModelForImageTextToText

        return AutoModelForImageTextToText

    def choose_trained(self, model: nn.Module) -> None:
        """Train the target components, and no other."""
        train_only(model, self.target_components)

    def chat_of(self, tokenizer: Any) -> VisionChat:
        return VisionChat(self.processor, self.talk, self.processed)

    def inputs_of(self, model: nn.Module) -> PictureInputs:
        found = PictureInputs(model, self.processed, frozen=self.frozen_tower)
        self.chat.banned = found.banned
        return found

    def adapt(self, model: nn.Module, lora: Lora, *, seed: int) -> nn.Module:
        """Adapters in the language layers alone: inference servers support no others."""
        network = add_adapters(model, lora, seed=seed, within=model.get_decoder())
        log.warning("model.lora: adapters in %s", ", ".join(places_of(network)))
        return network
