"""Preference pairs of coloured shapes: the right picture against one with a single error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tandem import rng
from tandem.contracts import register_dataset
from tandem.data.images import show
from tandem.data.records import Data, StreamMaker, prompt_ids
from tandem.data.shapes import PAIRS, Pictures, list_shown_pairs, shapes
from tandem.data.shapes_drawn import renderings
from tandem.data.stream import PromptStream
from tandem.types import Picture, Prompt

Pair = tuple[str, str]  # colour and shape


@register_dataset(judges="pictures")
def shapes_pairs(
    *,
    demonstrations: Pictures,  # the images with prompts, for a warm start
    pairs: int = 4096,
    held_out: Sequence[str] = (),
    curriculum: StreamMaker = PromptStream,  # draws the prompts of each iteration
    seed: int,  # seed of the rejected pictures and of the errors in demonstrations
) -> Data:
    """The data of `shapes`, and `pairs` prompts of it with a chosen and a rejected picture.

    Both show a shape of the same size at the same place: the chosen one as the prompt says, the
    rejected one with another colour or another shape. Training pictures never show a held-out
    pair; evaluation and test prompts have two pictures each, and these may.
    Raises ValueError for no pairs, and where one colour-shape pair is left to show.
    """
    if pairs < 1:
        raise ValueError(f"data.pairs={pairs} must be at least 1")
    shown = list_shown_pairs(held_out)
    if len(shown) < 2:
        raise ValueError("data.held_out leaves one pair, but a rejected picture must show another")
    data = shapes(
        demonstrations=demonstrations, held_out=held_out, curriculum=curriculum, seed=seed
    )
    turn = torch.arange(pairs)
    named = [shown[i] for i in (turn % len(shown)).tolist()]
    ids = prompt_ids("shapes", "pairs", turn)
    asked = [
        Prompt(id=id, source="_".join(pair), text=" ".join(pair))
        for id, pair in zip(ids, named, strict=True)
    ]
    which = (turn // len(shown)).tolist()
    return replace(
        data,
        eval=_add_pairs(data.eval, range(len(data.eval)), PAIRS, seed=seed),
        test=_add_pairs(data.test, range(len(data.test)), PAIRS, seed=seed),
        pairs=_add_pairs(asked, which, shown, seed=seed),
    )


def _add_pairs(
    prompts: Sequence[Prompt], which: Sequence[int], among: Sequence[Pair], *, seed: int
) -> tuple[Prompt, ...]:
    """The prompts with two pictures each; the rejected one shows a pair of `among`.

    which: the rendering of each prompt, modulo their number.
    """
    pictures = renderings()
    wrong = {" ".join(pair): list_unlike(pair, among) for pair in among}
    ids = torch.tensor([prompt.id for prompt in prompts])
    drawn = rng.uniform(rng.key(seed, "rejected", ids), (1,))[:, 0].tolist()
    return tuple(
        replace(
            prompt,
            chosen_media=_pick_rendering(pictures[prompt.text], number),
            rejected_media=_pick_rendering(pictures[_pick(wrong[prompt.text], chance)], number),
        )
        for prompt, number, chance in zip(prompts, which, drawn, strict=True)
    )


def list_unlike(pair: Pair, among: Sequence[Pair]) -> list[Pair]:
    """The pairs that differ only in colour or only in shape; if there are none, all others."""
    near = [other for other in among if (other[0] == pair[0]) != (other[1] == pair[1])]
    return near or [other for other in among if other != pair]


def _pick(pairs: Sequence[Pair], chance: float) -> str:
    return " ".join(pairs[int(chance * len(pairs))])


def _pick_rendering(pictures: Tensor, number: int) -> Picture:
    return show(pictures[number % len(pictures)])
