"""The coloured shapes: images, demonstrations, and that the seed determines everything."""

from collections import Counter

import pytest
import torch

from tandem.config import build, compose
from tandem.data.shapes import PAIRS, Pictures, shapes
from tandem.data.shapes_drawn import COLOURS, SHAPES, coverage, palette, renderings

NEVER = ("blue circle", "green square", "yellow triangle")


def world(count=1296, corrupted=0.0, held_out=NEVER, seed=0):
    pictures = Pictures(count=count, corrupted=corrupted)
    return shapes(demonstrations=pictures, held_out=held_out, seed=seed)


def of_picture():
    """Bytes of an image -> the prompt that it answers."""
    return {p.numpy().tobytes(): text for text, all in renderings().items() for p in all}


def draw(demonstrations):
    known = of_picture()
    return [known[prompt.media.load().numpy().tobytes()] for prompt in demonstrations]


def test_there_are_216_pictures_and_no_two_are_alike():
    pictures = renderings()
    assert len(pictures) == 12
    assert {(p.shape, p.dtype) for p in pictures.values()} == {((18, 16, 16, 3), torch.uint8)}
    assert len(torch.cat([*pictures.values()]).flatten(1).unique(dim=0)) == 216


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_has_its_area_lies_where_it_should_and_has_soft_edges(name):
    covered = coverage(SHAPES[name])
    share = {"circle": torch.pi, "square": torch.pi, "triangle": 2}[name]
    small, large = covered[:9], covered[9:]
    for one, radius in ((small, 4.2), (large, 5.6)):
        area = one.sum((1, 2))
        torch.testing.assert_close(area, torch.full((9,), share * radius**2), rtol=0.06, atol=0)
        assert torch.equal(one[4].roll((-1, 1), (0, 1)), one[2])  # the centre, moved up and right
        assert torch.equal(one[4], one[4].flip(1))
    assert ((small > 0) & (small < 1)).any((1, 2)).all()
    assert covered[:, 0].eq(0).all() and covered[:, :, 0].eq(0).all()  # nothing is cut off


def test_a_triangle_points_up_and_a_square_has_corners_that_a_circle_lacks():
    middle = {name: coverage(shape)[13] for name, shape in SHAPES.items()}
    widths = (middle["triangle"] > 0.5).sum(1)
    assert widths[3] < widths[8] < widths[12]
    assert middle["square"][3, 3] > 0.5 > middle["circle"][3, 3]


def test_inside_is_the_colour_and_outside_the_ground():
    for text, pictures in renderings().items():
        colour = palette()[text.split()[0]]
        assert (pictures == torch.tensor(colour)).all(-1).sum((1, 2)).gt(20).all()
        assert (pictures[:, 0, 0] == torch.tensor(palette()["black"])).all()
    assert palette()["yellow"] == (242, 242, 13)
    assert palette()["black"] == (13, 13, 13)  # -0.9


def test_all_pairs_are_asked_for_and_three_are_marked_as_held_out():
    data = world()
    for split in (data.train, data.eval, data.test):
        assert sorted(p.text for p in split) == sorted(f"{c} {s}" for c in COLOURS for s in SHAPES)
        marked = {p.text for p in split if p.source.startswith("held_out_")}
        assert marked == set(NEVER)
        assert {p.source.removeprefix("held_out_").replace("_", " ") for p in split} == {
            p.text for p in split
        }


def test_the_splits_start_from_noise_of_their_own():
    data = world()
    ids = [prompt.id for split in (data.train, data.eval, data.test) for prompt in split]
    ids += [prompt.id for prompt in data.demonstrations]
    assert len(set(ids)) == len(ids)
    assert all(0 <= id < 1 << 63 for id in ids)


def test_clean_demonstrations_show_what_they_say_and_every_picture_equally_often():
    data = world()
    assert draw(data.demonstrations) == [prompt.text for prompt in data.demonstrations]
    shown = Counter(prompt.media.load().numpy().tobytes() for prompt in data.demonstrations)
    assert len(shown) == 9 * 18
    assert set(shown.values()) == {8}


def test_no_demonstration_has_a_held_out_pair_even_if_corrupted():
    data = world(corrupted=0.9)
    assert not {prompt.text for prompt in data.demonstrations} & set(NEVER)
    assert not set(draw(data.demonstrations)) & set(NEVER)


def test_corruption_replaces_colour_and_shape_each_by_any_one():
    data = world(count=6000, corrupted=0.35, held_out=())
    pairs = [(p.text.split(), other.split()) for p, other in zip(
        data.demonstrations, draw(data.demonstrations), strict=True
    )]  # fmt: skip
    for place, kinds in ((0, 4), (1, 3)):
        kept = sum(named[place] == other[place] for named, other in pairs) / 6000
        assert kept == pytest.approx(1 - 0.35 * (kinds - 1) / kinds, abs=0.025)
    right = sum(named == other for named, other in pairs) / 6000
    assert right == pytest.approx(0.5654, abs=0.026)  # both kept: 0.7375 x 0.7667
    assert len({(*named, *other) for named, other in pairs}) == 144


def test_a_seed_says_what_is_corrupted_and_nothing_else_does():
    torch.manual_seed(1)
    one = draw(world(corrupted=0.5).demonstrations)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert draw(world(corrupted=0.5).demonstrations) == one
    assert torch.equal(torch.get_rng_state(), state)
    assert draw(world(corrupted=0.5, seed=1).demonstrations) != one


def test_an_id_names_a_demonstration_of_one_picture():
    pictures = {}
    for seed in range(3):
        for prompt in world(corrupted=0.5, seed=seed).demonstrations:
            key = (prompt.text, prompt.media.load().numpy().tobytes())
            assert pictures.setdefault(prompt.id, key) == key


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"held_out": ["purple circle"]}, "'purple circle' is not a pair of a colour"),
        ({"held_out": ["circle red"]}, "'circle red' is not a pair"),
        ({"held_out": [" ".join(pair) for pair in PAIRS]}, "leave at least one for training"),
        ({"count": 0}, "count must be at least 1"),
        ({"corrupted": 1.5}, "corrupted between 0 and 1"),
    ],
)
def test_impossible_worlds_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        world(**options)


def test_the_option_is_the_clean_world_with_three_pairs_held_out():
    data = build(compose(["data=shapes"]).data, "data")
    assert len(data.demonstrations) == 4096
    assert draw(data.demonstrations) == [prompt.text for prompt in data.demonstrations]
    assert {p.text for p in data.train if p.source.startswith("held_out_")} == set(NEVER)
    noisy = build(compose(["data=shapes", "data.demonstrations.corrupted=0.35"]).data, "data")
    assert draw(noisy.demonstrations) != [prompt.text for prompt in noisy.demonstrations]
