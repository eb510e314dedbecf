"""GenEval 2's questions, compared with the benchmark's own scoring of an answer."""

from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from PIL import Image
from test_asked import write_eye

from tandem.data.shapes_drawn import renderings
from tandem.hub import read_processor
from tandem.rewards.geneval2 import GenEval2, arithmetic, geometric, spellings
from tandem.rewards.result import Missing
from tandem.types import Prompt

ASKED = [["How many circles are red?", "two"], ["what ?", "Yes"]]


def prompt(**fields):
    return Prompt(id=0, source="s", text="two red circles", fields=fields)


def by_hand(path, picture, question, answer):
    """One question alone, as in the benchmark: the sum over the first tokens of its spellings."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    processor = read_processor(path, AutoConfig.from_pretrained(path))
    model = AutoModelForImageTextToText.from_pretrained(path).eval()
    text = f"{processor.image_token} {question} Answer in one word."
    given = processor(images=[Image.fromarray(picture.numpy())], text=[text], return_tensors="pt")
    with torch.no_grad():
        chances = model(**given).logits[0, -1].softmax(-1)
    ids = {
        processor.tokenizer(x, add_special_tokens=False).input_ids[0]
        for x in spellings(question, answer)
    }
    return sum(chances[i].item() for i in ids)


def test_a_picture_is_worth_the_mean_of_the_chances_of_its_answers():
    path = str(write_eye(Path(mkdtemp())))
    pictures = [renderings()[text][3] for text in ("red circle", "blue square")]
    rows = [prompt(vqa_list=ASKED), prompt(vqa_list=ASKED[1:])]
    want = [[by_hand(path, picture, *pair) for pair in row.fields["vqa_list"]]
            for picture, row in zip(pictures, rows, strict=True)]  # fmt: skip
    for rule in (geometric, arithmetic):
        got = GenEval2(path, rule=rule, batch_size=2)(pictures, rows)
        assert got == pytest.approx([rule(chances) for chances in want], rel=1e-4)
    got = GenEval2(path)([pictures[0]] * 3, [prompt(), prompt(vqa_list=[["a"]]), rows[1]])
    odd = prompt(vqa_list=[ASKED[0], [f"what {GenEval2(path).mark} ?", "Yes"]])
    alone, without = GenEval2(path)([pictures[0]] * 2, [rows[1], odd])
    assert alone == pytest.approx(got[2], rel=1e-4) and isinstance(without, Missing)
    assert got[0] is None and isinstance(got[1], Missing) and 0 < got[2] < 1


def test_one_part_that_is_missing_costs_the_whole_or_its_share():
    assert geometric([1.0, 0.0]) == 0 and arithmetic([1.0, 0.0]) == 0.5
    assert geometric([0.25, 1.0]) == 0.5


def test_a_number_counts_as_a_word_and_as_a_digit():
    words = ["two", "Two", "2", " two", " Two", " 2"]
    assert spellings("How many cows are in the image?", "two") == words
    assert spellings("Are the cows plastic?", "Yes") == ["Yes", "yes", " yes", " Yes"]
