"""Coloured shapes: `red circle` asks for one. A tiny flow model learns them in a minute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem import rng
from tandem.contracts import register_dataset
from tandem.data.images import show
from tandem.data.records import TOGETHER, Data, StreamMaker, prompt_id, prompt_ids
from tandem.data.shapes_drawn import COLOURS, SHAPES, renderings
from tandem.data.stream import PromptStream
from tandem.types import Prompt

PAIRS = tuple((colour, shape) for colour in COLOURS for shape in SHAPES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """The demonstrations: `count` pictures with prompts, some of them wrong."""

    count: int = 4096
    corrupted: float = 0.0  # chance per attribute (colour, shape) to be replaced by any

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.corrupted <= 1:
            raise ValueError(f"count must be at least 1, and corrupted between 0 and 1: {self}")


@register_dataset(pairs_in="shapes_pairs", judges="pictures")
def shapes(
    *,
    demonstrations: Pictures,  # the images with prompts, for a warm start
    held_out: Sequence[str] = (),
    curriculum: StreamMaker = PromptStream,  # draws the prompts of each iteration
    seed: int,
) -> Data:
    """Prompts for all twelve colour-shape pairs; no demonstration shows a `held_out` pair.

    A source is a pair: `red_circle`, or `held_out_blue_circle`; evaluation also reports the
    held-out pairs and the others as two groups. All renderings of a pair are shown equally often.
    Evaluation and test use the training prompts with other ids, and so with other starting noise.
    """
    shown = list_shown_pairs(held_out)
    never = [pair for pair in PAIRS if pair not in shown]
    return Data(
        train=_make_questions("train", never),
        eval=_make_questions("eval", never),
        test=_make_questions("test", never),
        demonstrations=_make_demonstrations(shown, demonstrations, seed=seed),
        curriculum=curriculum,
        asks_again=True,
    )


def list_shown_pairs(held_out: Sequence[str]) -> list[tuple[str, str]]:
    """The colour-shape pairs that are not held out, in their order.

    Raises ValueError for a pair that does not exist, and where none is left.
    """
    never = [_parse_pair(text) for text in held_out]
    shown = [pair for pair in PAIRS if pair not in never]
    if not shown:
        raise ValueError("data.held_out names all pairs: leave at least one for training")
    return shown


def _parse_pair(text: str) -> tuple[str, str]:
    colour, _, shape = text.partition(" ")
    if (colour, shape) not in PAIRS:
        raise ValueError(
            f"data.held_out: {text!r} is not a pair of a colour ({', '.join(COLOURS)}) "
            f"and a shape ({', '.join(SHAPES)})"
        )
    return colour, shape


def _make_questions(split: str, never: Sequence[tuple[str, str]]) -> tuple[Prompt, ...]:
    return tuple(
        Prompt(
            id=prompt_id("shapes", split, *pair),
            source="_".join(("held_out", *pair) if pair in never else pair),
            text=" ".join(pair),
            fields={TOGETHER: ("held_out" if pair in never else "shown",)},
        )
        for pair in PAIRS
    )


def _make_demonstrations(
    shown: Sequence[tuple[str, str]], wanted: Pictures, *, seed: int
) -> tuple[Prompt, ...]:
    turn = torch.arange(wanted.count)
    named = torch.tensor([PAIRS.index(pair) for pair in shown])[turn % len(shown)]
    drawn = corrupt_pairs(named, shown, share=wanted.corrupted, seed=seed)
    pictures = torch.stack([*renderings().values()])  # [pairs, renderings, H, W, 3]
    which = turn // len(shown) % pictures.shape[1]
    # The id includes the copy's number, so that it is unique to a demonstration.
    ids = prompt_ids("shapes", "shown", named, drawn, turn)
    rows = zip(ids, named.tolist(), drawn.tolist(), which.tolist(), strict=True)
    return tuple(
        Prompt(
            id=id,
            source="_".join(PAIRS[label]),
            text=" ".join(PAIRS[label]),
            media=show(pictures[pair, rendering]),
        )
        for id, label, pair, rendering in rows
    )


def corrupt_pairs(
    named: Tensor, shown: Sequence[tuple[str, str]], *, share: float, seed: int
) -> Tensor:
    """The pairs that the pictures show, given the named ones: [N] int64, numbers of `PAIRS`.

    A colour or a shape may be replaced by any, itself included, but never into a held-out pair.
    """
    colour = _replace(named // len(SHAPES), len(COLOURS), share, rng.key(seed, "corrupt", "colour"))
    shape = _replace(named % len(SHAPES), len(SHAPES), share, rng.key(seed, "corrupt", "shape"))
    drawn = colour * len(SHAPES) + shape
    allowed = torch.tensor([pair in shown for pair in PAIRS])
    return torch.where(allowed[drawn], drawn, named)


def _replace(values: Tensor, kinds: int, share: float, key: int) -> Tensor:
    hit, other = rng.uniform(key, (len(values), 2)).unbind(1)
    return torch.where(hit < share, (other * kinds).long(), values)
