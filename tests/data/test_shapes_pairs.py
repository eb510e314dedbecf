"""Pairs of coloured shapes: which image is preferred, and which are never shown."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from tandem.config import build, compose
from tandem.data.shapes import PAIRS, Pictures, shapes
from tandem.data.shapes_drawn import renderings
from tandem.data.shapes_pairs import list_unlike, shapes_pairs

NEVER = ("blue circle", "green square", "yellow triangle")


def world(pairs=1296, held_out=NEVER, seed=0):
    return shapes_pairs(
        demonstrations=Pictures(count=90), pairs=pairs, held_out=held_out, seed=seed
    )


def named():
    """Bytes of an image -> its prompt and its number."""
    return {
        picture.numpy().tobytes(): (text, number)
        for text, all in renderings().items()
        for number, picture in enumerate(all)
    }


def observe(prompts):
    """(asked, chosen, rejected, number of the rendering) of each prompt."""
    known = named()
    found = []
    for prompt in prompts:
        chosen, number = known[prompt.chosen_media.load().numpy().tobytes()]
        rejected, other = known[prompt.rejected_media.load().numpy().tobytes()]
        assert number == other
        found.append((prompt.text, chosen, rejected, number))
    return found


def test_the_chosen_picture_is_right_and_the_rejected_one_wrong_in_one_thing():
    data = world()
    for asked, chosen, rejected, _ in observe((*data.pairs, *data.eval, *data.test)):
        assert asked == chosen
        assert sum(a == b for a, b in zip(asked.split(), rejected.split(), strict=True)) == 1


def test_every_shown_rendering_is_chosen_equally_often_and_no_held_out_one_is_shown():
    rows = observe(world().pairs)
    assert set(Counter((chosen, number) for _, chosen, _, number in rows).values()) == {8}
    shown = {" ".join(pair) for pair in PAIRS} - {*NEVER}
    assert {chosen for _, chosen, *_ in rows} == shown
    assert {rejected for *_, rejected, _ in rows} == shown


def test_held_out_pairs_are_among_those_of_evaluation():
    data = world()
    for split in (data.eval, data.test):
        assert {asked for asked, *_ in observe(split)} == {" ".join(pair) for pair in PAIRS}
        assert all(prompt.is_pair for prompt in split)


def test_all_else_is_the_world_of_shapes():
    data, plain = world(), shapes(demonstrations=Pictures(count=90), held_out=NEVER, seed=0)
    alone = [[replace(p, chosen_media=None, rejected_media=None) for p in split]
             for split in (data.train, data.eval, data.test)]  # fmt: skip
    assert alone == [[*split] for split in (plain.train, plain.eval, plain.test)]
    assert data.demonstrations == plain.demonstrations
    assert data.asks_again


def test_a_seed_says_what_is_rejected_and_ids_name_one_pair():
    torch.manual_seed(1)
    one = observe(world().pairs)
    torch.manual_seed(2)
    assert observe(world().pairs) == one
    assert observe(world(seed=1).pairs) != one
    assert len({prompt.id for prompt in world().pairs}) == 1296


def test_a_pair_without_a_near_one_is_compared_with_any_other():
    few = [("red", "circle"), ("blue", "square")]
    assert list_unlike(few[0], few) == [few[1]]
    assert list_unlike(few[0], [*few, ("red", "square")]) == [("red", "square")]


def test_worlds_without_a_wrong_picture_are_refused():
    all_but_one = [" ".join(pair) for pair in PAIRS[1:]]
    with pytest.raises(ValueError, match=r"data\.held_out leaves one pair"):
        world(held_out=all_but_one)
    with pytest.raises(ValueError, match=r"data\.pairs=0 must be at least 1"):
        world(pairs=0)


def test_the_option_shows_nine_pairs():
    data = build(compose(["data=shapes_pairs", "data.pairs=90"]).data, "data")
    assert len(data.pairs) == 90
    assert {prompt.text for prompt in data.pairs}.isdisjoint(NEVER)
