"""Questions about coloured shapes: images, held-out pairs, and demonstrations."""

from collections import Counter
from functools import cache

import pytest
import torch

from tandem.data.shapes_asked import QUESTIONS, Answers, any_answer, mosaic, shapes_asked
from tandem.data.shapes_drawn import COLOURS, SHAPES, SIZE, palette, renderings

NEVER = ["blue circle", "green square", "yellow triangle"]


@cache
def make_data(corrupted=0.0):
    wanted = Answers(count=800, corrupted=corrupted)
    return shapes_asked(demonstrations=wanted, held_out=NEVER, mosaics=80, seed=3)


drawn_pairs = cache(renderings)


def find_pair(prompt):
    """The pair that a prompt's image renders, found by comparison with all renderings."""
    pixels = prompt.images[0].load()
    (pair,) = [
        name for name, drawn in drawn_pairs().items() if (drawn == pixels).all((1, 2, 3)).any()
    ]
    return pair


def test_answers_are_those_of_an_eye_that_looks_at_the_picture():
    for prompt in make_data().train + make_data().eval:
        task = prompt.source.removeprefix("held_out_")
        if task == "count":
            continue
        pair = find_pair(prompt)
        want = {"what": pair, "colour": pair.split()[0], "shape": pair.split()[1]}[task]
        assert prompt.answer == want


def test_counts_are_those_of_the_pixels():
    found = Counter()
    for prompt in make_data().train:
        if prompt.source != "count":
            continue
        colour = torch.tensor(palette()[prompt.text.split()[3]]).byte()
        tiles = prompt.images[0].load().unflatten(0, (2, SIZE)).unflatten(2, (2, SIZE))
        seen = (tiles == colour).all(-1).any(3).any(1)  # a tile has a pixel of exactly that colour
        assert int(seen.sum()) == int(prompt.answer)
        found[prompt.answer] += 1
    assert found == dict.fromkeys("01234", 16)


def test_held_out_pairs_are_asked_about_in_evaluation_alone():
    shown = {find_pair(p) for p in make_data().train if p.source != "count"}
    assert shown == {*renderings()} - {*NEVER}
    kept = {find_pair(p) for p in make_data().eval if p.source.startswith("held_out")}
    assert kept == {*NEVER}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"held_out": ["red circle", "red square", "red triangle"]},
            "data.held_out names all pairs of red: a mosaic needs one of every colour",
        ),
        ({"mosaics": 0}, "data.mosaics=0 must be at least 1"),
        ({"mosaics": -4}, "data.mosaics=-4 must be at least 1"),
    ],
)
def test_settings_without_a_question_to_count_are_refused_by_their_key(options, said):
    with pytest.raises(ValueError, match=said):
        shapes_asked(demonstrations=Answers(count=8), seed=0, **options)


def test_a_mosaic_that_is_drawn_twice_is_asked_once():
    data = shapes_asked(
        demonstrations=Answers(count=8),
        held_out=NEVER,
        held_out_renderings=1,  # few mosaics are possible
        mosaics=512,
        seed=0,
    )
    asked = [(p.text, p.images[0].name) for p in data.eval if p.source == "count"]
    assert len(set(asked)) == len(asked) < 512 // 4
    assert len([p for p in data.train if p.source == "count"]) == 512


def test_no_picture_to_train_on_is_evaluated():
    train, later = ({p.images[0].name for p in ps} for ps in (make_data().train, make_data().eval))
    assert not train & later


def test_tasks_are_demonstrated_equally_often_and_tell_the_truth_where_nothing_is_corrupted():
    shown = make_data().demonstrations
    assert Counter(p.source for p in shown) == dict.fromkeys(QUESTIONS, 200)
    right = {(p.text, p.images): p.answer for p in make_data().train}
    assert all(right[p.text, p.images] == p.answer for p in shown)


@pytest.mark.parametrize(
    ("task", "answers"), [("colour", 4), ("shape", 3), ("what", 12), ("count", 5)]
)
def test_corrupted_answers_are_any_to_the_same_question(task, answers):
    right = {(p.text, p.images): p.answer for p in make_data().train}
    shown = [p for p in make_data(0.6).demonstrations if p.source == task]
    wrong = sum(right[p.text, p.images] != p.answer for p in shown) / len(shown)
    assert wrong == pytest.approx(0.6 * (1 - 1 / answers), abs=0.12)
    grid = [(x / 12, y / 12) for x in range(12) for y in range(12)]
    assert len({any_answer(task, draws) for draws in grid}) == answers


def test_a_mosaic_has_its_tiles_row_by_row():
    tiles = torch.arange(4).view(4, 1, 1, 1).expand(4, 2, 3, 3)
    assert mosaic(tiles)[::2, ::3, 0].tolist() == [[0, 1], [2, 3]]
    assert mosaic(tiles).shape == (4, 6, 3)


def test_words_are_those_of_the_world():
    assert {p.answer for p in make_data().train if p.source == "colour"} == {*COLOURS}
    assert {p.answer for p in make_data().train if p.source == "shape"} == {*SHAPES}
