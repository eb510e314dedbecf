"""The reward of text rendering: Flow-GRPO's formula case by case. test_real_ocr.py reads text."""

import importlib.util
import random
from functools import cache

import pytest
import torch

from tandem.config import build, check, compose
from tandem.rewards import Reward
from tandem.rewards.ocr import Ocr, edit_distance, similarity
from tandem.rewards.result import ABSTAINED
from tandem.types import Prompt

PICTURE = torch.zeros(8, 8, 3, dtype=torch.uint8)


def judge(read, text="", answer=None):
    reward = Ocr(lambda pictures: [read] * len(pictures))
    return reward([PICTURE], [Prompt(id=0, source="s", text=text, answer=answer)])[0]


SIGN = 'A sign that says "Hello World" in the rain'


@pytest.mark.parametrize(
    ("read", "score"),
    [
        ("Hello World", 1.0),
        ("hello world", 1.0),  # no case
        ("HelloWorld", 1.0),  # no spaces
        ("OPEN Hello World 24h", 1.0),  # other text is ignored
        ("Hallo World", 0.9),
        ("Hello Wrld", 0.9),
        ("Helo Worldd", 0.8),
        ("", 0.0),
        ("a long text about something else", 0.0),  # never below 0
    ],
)
def test_a_score_is_one_minus_the_edits_over_the_letters_asked_for(read, score):
    assert judge(read, SIGN) == pytest.approx(score)


def test_what_is_asked_for_is_the_answer_or_else_the_first_quotation():
    assert judge("cat", 'write "dog" and "cat"') == 0.0
    assert judge("cat", 'write "dog"', answer="C a t") == 1.0
    assert judge("cat", "write nothing") is None
    assert judge("cat", 'an empty ""') is None


def test_one_quotation_mark_costs_its_own_row_alone():
    reward = Reward(Ocr(lambda pictures: ["Hello World"] * len(pictures)))
    texts = (SIGN, 'a 12" ruler', "no text")
    prompts = [Prompt(id=i, source="s", text=text) for i, text in enumerate(texts)]
    values, faults = reward([PICTURE] * 3, prompts)
    assert values == [1.0, None, None]
    assert faults == {"prompt 1 of s has an unpaired quotation mark": 1, ABSTAINED: 1}


def test_a_picture_that_cannot_be_read_costs_its_own_score_alone():
    calls = []

    def read(pictures):
        calls.append(len(pictures))
        marks = [int(picture[0, 0, 0]) for picture in pictures]
        if 1 in marks:
            raise RuntimeError("no such picture")
        return [None if mark == 2 else "cat" for mark in marks]

    def score(marks):
        calls.clear()
        prompts = [Prompt(id=i, source="s", text="?", answer="cat") for i in range(len(marks))]
        return Reward(Ocr(read))([PICTURE + mark for mark in marks], prompts)

    assert score([0, 0, 0]) == ([1.0] * 3, {})
    assert calls == [3]  # an engine may be faster on several at once
    values, faults = score([0, 1, 2, 0])
    assert values == [1.0, None, None, 1.0]
    failed, foreign = sorted(faults, reverse=True)
    assert failed.startswith("raised RuntimeError: 'no such picture' at ")
    assert foreign.startswith("raised AttributeError: \"'NoneType' object has no attribute")
    assert calls == [4, 1, 1, 1, 1]
    assert score([1])[0] == [None]
    assert calls == [1]


def test_nobody_is_asked_about_pictures_without_a_text():
    asked = []

    def read(pictures):
        asked.append(len(pictures))
        return ["cat"] * len(pictures)

    prompts = [Prompt(id=i, source="s", text=t) for i, t in enumerate(("?", '"cat"', "?"))]
    assert Ocr(read)([PICTURE] * 3, prompts) == [None, 1.0, None]
    assert asked == [1]


def test_the_distance_is_the_recursion_of_its_definition():
    @cache
    def recursive(a, b):
        if not a or not b:
            return len(a) + len(b)
        same = recursive(a[1:], b[1:]) + (a[0] != b[0])
        return min(same, recursive(a[1:], b) + 1, recursive(a, b[1:]) + 1)

    draw = random.Random(0)
    words = ["".join(draw.choices("ab c", k=draw.randrange(8))) for _ in range(60)]
    for first, second in zip(words, reversed(words), strict=True):
        assert edit_distance(first, second) == recursive(first, second)
    assert similarity("kitten", "sitting") == pytest.approx(1 - 3 / 7)


def test_the_option_composes_with_any_reader_and_says_what_is_missing():
    told = ["model=sd3_5_medium", "data=text", "data.path=x.txt", "reward=ocr"]
    check(compose(told))
    if importlib.util.find_spec("rapidocr_onnxruntime") is None:
        with pytest.raises(ValueError, match=r'pip install -e "\.\[ocr\]"'):
            build(compose(told).reward, "reward")
