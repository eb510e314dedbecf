"""Letters drawn in code: `letter "A"` asks for one. An OCR model rewards a flow model for them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tandem.contracts import register_dataset
from tandem.data.images import show
from tandem.data.records import Data, StreamMaker, prompt_id, prompt_ids
from tandem.data.shapes_drawn import SIZE
from tandem.data.stream import PromptStream
from tandem.types import Prompt

FINE = 8  # points along each side of a pixel, averaged into its level
HEIGHT, BOLD = 14.0, 0.5  # pixels: the size of the font, and the stroke added to its lines
PLACES = tuple((y, x) for y in (-1, 0, 1) for x in (-1, 0, 1))  # offsets of the middle, in pixels
PAPER, INK = 230, 25  # levels


@register_dataset(judges="pictures")
def letters(
    *,
    alphabet: str = "ABDEFHKMRSTX",
    demonstrations: int = 2048,
    curriculum: StreamMaker = PromptStream,  # draws the prompts of each iteration
    seed: int,  # unused: letters and places are listed, not drawn
) -> Data:
    """Prompts `letter "A"` for each letter of `alphabet`, which is also the source.

    A demonstration shows the letter, dark on light, at one of nine places. Evaluation and test use
    the training prompts with noise of their own. Raises ValueError for an alphabet with a
    letter twice, or none, and for no demonstration.
    """
    if len(set(alphabet)) < len(alphabet) or not alphabet.isalpha() or demonstrations < 1:
        raise ValueError(
            f"data.alphabet={alphabet}: give distinct letters and at least one demonstration"
        )
    return Data(
        train=_ask("train", alphabet),
        eval=_ask("eval", alphabet),
        test=_ask("test", alphabet),
        demonstrations=_show(alphabet, demonstrations),
        curriculum=curriculum,
        asks_again=True,
    )


def draw_letter(letter: str) -> Tensor:
    """A letter at nine places, uint8 [9, 16, 16, 3]."""
    from PIL import Image, ImageDraw, ImageFont

    form = {"font": ImageFont.load_default(size=HEIGHT * FINE), "stroke_width": BOLD * FINE}
    drawn = []
    for y, x in PLACES:
        picture = Image.new("L", (SIZE * FINE,) * 2)
        draw = ImageDraw.Draw(picture)
        left, top, right, bottom = draw.textbbox((0, 0), letter, **form)
        ends = ((SIZE + 2 * x) * FINE - left - right, (SIZE + 2 * y) * FINE - top - bottom)
        draw.text([end // 2 for end in ends], letter, fill=255, **form)
        drawn.append(torch.from_numpy(np.array(picture)))
    covered = torch.nn.functional.avg_pool2d(torch.stack(drawn).float() / 255, FINE)
    levels = (PAPER + (INK - PAPER) * covered).round().byte()
    return levels[..., None].expand(-1, -1, -1, 3).contiguous()


def _ask(split: str, alphabet: str) -> tuple[Prompt, ...]:
    return tuple(
        Prompt(id=prompt_id("letters", split, letter), source=letter, text=f'letter "{letter}"')
        for letter in alphabet
    )


def _show(alphabet: str, count: int) -> tuple[Prompt, ...]:
    turn = torch.arange(count)
    pictures = [draw_letter(letter) for letter in alphabet]
    which, place = turn % len(alphabet), turn // len(alphabet) % len(PLACES)
    rows = zip(prompt_ids("letters", "shown", turn), which.tolist(), place.tolist(), strict=True)
    return tuple(
        Prompt(
            id=id,
            source=alphabet[number],
            text=f'letter "{alphabet[number]}"',
            media=show(pictures[number][at]),
        )
        for id, number, at in rows
    )
