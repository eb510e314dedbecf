"""Rewards of the text that a picture was painted from."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from tandem.contracts import declare
from tandem.types import WRITTEN, Prompt


@declare(judges="pictures")
class Written:
    """A reward of a text by itself, of the sample of a chain: its output is the picture."""

    def __init__(
        self,
        # Reward of a text that scores the text behind an image.
        function: Callable[[str, Prompt], float | None],
    ) -> None:
        self.function = function

    def __call__(self, output: Tensor, prompt: Prompt) -> float | None:
        """None where no text was written. `output`: uint8 [H, W, 3]."""
        text = prompt.fields.get(WRITTEN)
        return None if text is None else self.function(text, prompt)
