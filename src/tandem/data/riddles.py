"""Riddles of coloured shapes: `the colour of blood with no corners` asks for a red circle.

A small task for a chain: a language model names the picture, and a flow model paints it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem import rng
from tandem.contracts import register_dataset
from tandem.data.images import show
from tandem.data.records import Data, StreamMaker, prompt_id, prompt_ids
from tandem.data.shapes import PAIRS, Pictures, corrupt_pairs
from tandem.data.shapes_drawn import COLOURS, SHAPES, renderings
from tandem.data.stream import PromptStream
from tandem.types import Prompt

# Two clues for each colour and each shape.
CLUES = {
    "red": ("the colour of blood", "the colour of a ripe tomato"),
    "green": ("the colour of grass", "the colour of a frog"),
    "blue": ("the colour of the sea", "the colour of a clear sky"),
    "yellow": ("the colour of the sun", "the colour of a lemon"),
    "circle": ("without corners", "round as a coin"),
    "square": ("with four equal sides", "one field of a chess board"),
    "triangle": ("with three corners", "half of a diamond"),
}
WAYS = tuple((colour, shape) for colour in range(2) for shape in range(2))  # pairs of clues
HELD_OUT = 1  # of the ways of each pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Riddle:
    """One riddle, and the pair of `PAIRS` that solves it."""

    pair: int
    way: int  # of `WAYS`
    text: str


@register_dataset
def riddles(
    *,
    demonstrations: Pictures,  # the riddles with an answer and an image, for a warm start
    misread: float = 0.7,
    curriculum: StreamMaker = PromptStream,  # draws the prompts of each iteration
    seed: int,  # seed of the riddles that are held out, and of the errors in demonstrations
) -> Data:
    """Twelve pairs of a colour and a shape, each in eight riddles: two clues for either, in either
    order. One combination of clues of each pair is kept for evaluation.

    A demonstration is a riddle, an answer and a picture. In a `misread` share of them one word of
    the answer is wrong; the picture follows the answer, apart from its own corruption.
    """
    every = list_riddles()
    shown = [riddle for riddle in every if not is_held_out(riddle, seed)]
    return Data(
        train=tuple(ask("train", riddle) for riddle in shown),
        eval=tuple(ask("eval", riddle) for riddle in every if is_held_out(riddle, seed)),
        demonstrations=_make_demonstrations(shown, demonstrations, misread=misread, seed=seed),
        curriculum=curriculum,
    )


def list_riddles() -> list[Riddle]:
    """All riddles, pair by pair."""
    found = []
    for pair, (colour, shape) in enumerate(PAIRS):
        for way, (of_colour, of_shape) in enumerate(WAYS):
            clues = (CLUES[colour][of_colour], CLUES[shape][of_shape])
            found += [
                Riddle(pair=pair, way=way, text=f"{' , '.join(order)} :")
                for order in (clues, clues[::-1])
            ]
    return found


def is_held_out(riddle: Riddle, seed: int) -> bool:
    """Whether the combination of clues is kept for evaluation."""
    order = rng.permutation(rng.key(seed, "riddles", riddle.pair), len(WAYS))
    return riddle.way in order[:HELD_OUT].tolist()


def ask(split: str, riddle: Riddle) -> Prompt:
    """The riddle as a prompt; pictures are judged by its answer."""
    name = " ".join(PAIRS[riddle.pair])
    return Prompt(
        id=prompt_id("riddles", split, riddle.text),
        source=name.replace(" ", "_"),
        text=riddle.text,
        answer=name,
    )


def _make_demonstrations(
    shown: Sequence[Riddle], wanted: Pictures, *, misread: float, seed: int
) -> tuple[Prompt, ...]:
    turn = torch.arange(wanted.count)
    place = turn % len(shown)
    meant = torch.tensor([riddle.pair for riddle in shown])[place]
    said = _misread(meant, share=misread, seed=seed)
    drawn = corrupt_pairs(said, PAIRS, share=wanted.corrupted, seed=seed)
    pictures = torch.stack([*renderings().values()])  # [pairs, renderings, H, W, 3]
    which = turn // len(shown) % pictures.shape[1]
    ids = prompt_ids("riddles", "shown", place, said, drawn, turn)
    rows = zip(ids, place.tolist(), said.tolist(), drawn.tolist(), which.tolist(), strict=True)
    return tuple(
        Prompt(
            id=id,
            source="_".join(PAIRS[shown[riddle].pair]),
            text=shown[riddle].text,
            answer=" ".join(PAIRS[words]),
            media=show(pictures[painted, rendering]),
        )
        for id, riddle, words, painted, rendering in rows
    )


def _misread(meant: Tensor, *, share: float, seed: int) -> Tensor:
    """The pairs in the written answers, [N] int64: a share of them has a wrong colour or shape."""
    hit, which, other = rng.uniform(rng.key(seed, "misread"), (len(meant), 3)).unbind(1)
    colour, shape = meant // len(SHAPES), meant % len(SHAPES)
    colours, shapes = len(COLOURS), len(SHAPES)
    wrong_colour = (colour + 1 + (other * (colours - 1)).long()) % colours
    wrong_shape = (shape + 1 + (other * (shapes - 1)).long()) % shapes
    of_colour = which < 0.5
    said = torch.where(of_colour, wrong_colour, colour) * shapes
    said = said + torch.where(of_colour, shape, wrong_shape)
    return torch.where(hit < share, said, meant)
