"""Prompt encoders that are trained with the transformer: they encode prompts in every pass.

A condition then holds the number of its prompt, [1] int64, and the encoders' output has a gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from tandem.policies.flow.components import Components
from tandem.policies.flow.families.folders import load_reader, outline_reader
from tandem.policies.flow.families.prompt_readers import PromptReaders
from tandem.policies.flow.records import Condition, PromptInput

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

ASKED = "asked"


class TrainedReaders(PromptReaders):
    """A family whose encoders can be trained."""

    asked: dict[PromptInput, int] | None = None  # prompt numbers; None: no encoder is trained
    pipeline: DiffusionPipeline | None = None  # with the frozen encoders, loaded on first use

    def component(self, name: str, dtype: torch.dtype | None) -> nn.Module:
        """An encoder of the folder, trained from now on; dtype None: as saved.

        Raises ValueError if the folder does not have it.
        """
        there = [x for x in self.readers if (self.folder / x / "config.json").is_file()]
        if name not in there:
            raise ValueError(
                f"model.target_components names {name}, but model.path={self.folder} has only "
                f"{', '.join([*self.transformers(), *there])}"
            )
        self.trained = (*self.trained, name)
        if next(self.network.parameters()).is_meta:
            return outline_reader(self.folder, name, dtype)
        self.asked = {}
        return load_reader(self.folder, name, dtype).eval()

    def fingerprint(self) -> str | None:
        return super().fingerprint() if self.asked is None else None

    def encode(self, inputs: Sequence[PromptInput], device: torch.device) -> Iterator[Condition]:
        if self.asked is None:
            yield from super().encode(inputs, device)
            return
        for asked in inputs:
            number = self.asked.setdefault(asked, len(self.asked))
            yield {ASKED: torch.tensor(number, device=device)}

    def read(self, network: Components, condition: Condition) -> Condition:
        """The transformer's condition, encoded with the trained encoders in `network`."""
        if ASKED not in condition:  # an outline has no prompts
            return condition
        rows, inputs = condition[ASKED], list(self.asked)
        if self.pipeline is None:
            self.pipeline = self.reading(rows.device)
        for name in network.readers:
            setattr(self.pipeline, name, network[name])
        numbers = rows.tolist()
        said = {n: self.condition(self.pipeline, inputs[n], rows.device) for n in set(numbers)}
        return {name: torch.stack([said[n][name] for n in numbers]) for name in said[numbers[0]]}
