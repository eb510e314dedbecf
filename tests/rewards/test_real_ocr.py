"""Real text in images, read by the OCR models of rapidocr-onnxruntime."""

import json

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

pytest.importorskip("rapidocr_onnxruntime", reason='no OCR: pip install -e ".[ocr]"')

import tandem
from tandem.config import build, compose
from tandem.data.letters import draw_letter
from tandem.rewards.ocr import Ocr
from tandem.rewards.reading import RapidReader
from tandem.types import Prompt

pytestmark = pytest.mark.slow
ASKED = Prompt(id=0, source="s", text='A sign that says "Hello World"')


@pytest.fixture(scope="module")
def reader():
    return RapidReader(detect=False)


@pytest.fixture(scope="module")
def reward():
    return Ocr(RapidReader())


def write(text, *, size=32, shape=(96, 320), ground="white", ink="black"):
    """An image of a text in Pillow's own font, uint8 [H, W, 3]."""
    picture = Image.new("RGB", shape[::-1], ground)
    font = ImageFont.load_default(size=size)
    middle = (shape[1] / 2, shape[0] / 2)
    ImageDraw.Draw(picture).text(middle, text, font=font, fill=ink, anchor="mm")
    return torch.from_numpy(np.array(picture))


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Hello World", 1.0),
        ("HELLO WORLD", 1.0),
        ("Hello World again", 1.0),
        ("Hallo World", 0.9),
        ("Hello Vorld", 0.9),
        ("", 0.0),
        ("Привет мир", 0.0),
    ],
)
def test_a_sign_is_worth_its_letters(reward, text, score):
    assert reward([write(text)], [ASKED]) == [pytest.approx(score)]


def test_two_lines_are_read_one_after_the_other_in_any_colour(reward):
    sign = write("Hello\nWorld", shape=(256, 256), size=48, ground="navy", ink="yellow")
    assert reward([sign], [ASKED]) == [1.0]


def test_a_score_does_not_depend_on_its_batch(reward):
    signs = [write(text) for text in ("Hello World", "Hullo Wurld", "", "Hello")]
    assert reward(signs, [ASKED] * 4) == [reward([sign], [ASKED])[0] for sign in signs]


def test_a_letter_of_16_pixels_is_read_as_a_line_and_not_found_as_one(reader):
    letters = "ABCDEFGH"
    prompts = [Prompt(id=i, source="s", text="?", answer=x) for i, x in enumerate(letters)]
    pictures = [write(x, size=16, shape=(16, 16)) for x in letters]
    assert Ocr(reader)(pictures, prompts) == [1.0] * 8
    assert sum(Ocr(RapidReader())(pictures, prompts)) < 8


def test_the_option_is_built_as_composed():
    node = compose(["model=tiny_flow", "reward=ocr", "reward.ocr.function.reader.threads=2"]).reward
    values, faults = build(node, "reward")["ocr"]([write("Hello World")], [ASKED])
    assert (values, list(faults)) == ([1.0], [])


def test_what_data_letters_draws_is_read(reader):
    for letter in build(compose(["model=tiny_flow", "data=letters"]).data, "data").train:
        assert Ocr(reader)([*draw_letter(letter.source)], [letter] * 9) == [1.0] * 9


def test_a_flow_learns_to_draw_letters_that_can_be_read(tmp_path):
    tandem.train("model=tiny_flow", "data=letters", "evaluation.every=1000", f"run_dir={tmp_path}")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    first, *_, last = [line["eval/accuracy"] for line in lines if "eval/accuracy" in line]
    assert last >= first + 0.2
