"""A vision-language model as a judge: the probability that it writes the answer."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch

from tandem.data.images import show
from tandem.data.shapes import PAIRS
from tandem.data.shapes_drawn import renderings
from tandem.policies.language.records import Sampling
from tandem.policies.request import Request
from tandem.policies.vision.policy import VisionLanguagePolicy
from tandem.policies.vision.tiny_vlm import tiny_vlm
from tandem.rewards.asked import Asked
from tandem.rewards.result import Missing
from tandem.types import IMAGE, Prompt

TEXTS = [" ".join(pair) for pair in PAIRS]


def write_eye(folder: Path) -> Path:
    """A new vision-language model in a folder."""
    for part in tiny_vlm(seed=0):
        part.save_pretrained(folder / "eye")
    return folder / "eye"


@cache
def eye():
    return str(write_eye(Path(mkdtemp())))


def prompts(texts):
    return [Prompt(id=i, source="s", text=text) for i, text in enumerate(texts)]


def test_the_score_is_the_probability_of_the_answer_and_its_end():
    policy = VisionLanguagePolicy(path=eye())
    policy.load(Request(sampling=Sampling(max_new_tokens=4)))
    pictures = [renderings()[text][3] for text in TEXTS]
    shown = [
        Prompt(id=i, source="s", text=f"{IMAGE} what ?", answer=text, images=(show(picture),))
        for i, (text, picture) in enumerate(zip(TEXTS, pictures, strict=True))
    ]
    rows = policy.encode(shown, key=0, slots=range(len(shown)))
    image = policy.scorer.inputs.image_token
    # A judge does not sample, and no token's probability is changed.
    policy.scorer.inputs.banned = ()
    want = policy.logp(rows).sum(1).exp().tolist()
    got = Asked(eye(), batch_size=5)(pictures, prompts(TEXTS))
    assert image not in rows.sample.tokens[:, -3:]
    assert got == pytest.approx(want, rel=1e-4)


def test_the_texts_name_the_prompt():
    picture = renderings()["red circle"][0]
    yes = Asked(eye(), question="how many {text} ?", answer="1", end=False)
    scores = yes([picture] * 2, prompts(["red", "blue"]))
    assert scores[0] != scores[1] and all(0 < score < 1 for score in scores)
    ends = Asked(eye(), question="how many {text} ?", answer="1")([picture], prompts(["red"]))
    assert ends[0] < scores[0]


def test_a_text_with_a_special_token_costs_no_other_picture_its_score():
    judge, picture = Asked(eye(), answer="1"), renderings()["red circle"][0]
    odd = [f"red {token}" for token in (judge.mark, judge.tokenizer.eos_token)]
    first, second, third = judge([picture] * 3, prompts([*odd, "red"]))
    assert all(isinstance(x, Missing) and "special token" in str(x) for x in (first, second))
    assert third == pytest.approx(judge([picture], prompts(["red"]))[0], rel=1e-4)


@pytest.mark.parametrize("owner", ["processor", "tokenizer"])
def test_the_question_is_asked_in_the_default_of_named_templates(owner):
    judge = Asked(eye())
    named = {"default": "{{ messages[0].content[1].text }} !", "other": ""}
    getattr(judge, owner).chat_template = named
    assert judge.put("red") == "what ? !"


SPELT = "{% for message in messages %}{% for part in message.content %}{{ part.text }}{% endfor %}"
FIRST = "{% if messages | length > 1 %}{{ messages[0].content + '' }}{% endif %}"  # a TypeError


@pytest.mark.parametrize(
    ("template", "end"),
    [
        (SPELT + "<|vision_end|>{% endfor %}", "<|vision_end|>"),
        (SPELT + " no <|vision_end|>{% endfor %}", None),
        (FIRST + SPELT + "<|vision_end|>{% endfor %}", None),
        (None, None),
    ],
    ids=["the template's", "another token", "one question", "no template"],
)
def test_an_answer_ends_as_the_template_ends_a_turn_if_the_model_stops_there(template, end):
    judge = Asked(eye())
    own, ids = judge.tokenizer.eos_token, judge.tokenizer.convert_tokens_to_ids
    judge.processor.chat_template = template
    judge.model.generation_config.eos_token_id = [ids("<|vision_end|>")]
    assert judge.answer_ids("red circle") == ids(["red", "circle", end or own])


def test_another_picture_has_another_score_and_the_batch_none_of_it():
    judge = Asked(eye())
    pictures = [renderings()["red circle"][0], torch.zeros(16, 16, 3).byte()]
    together = judge(pictures, prompts(["red circle"] * 2))
    assert together[0] != together[1]
    alone = [judge([picture], prompts(["red circle"]))[0] for picture in pictures]
    assert alone == pytest.approx(together, rel=1e-5)


def test_the_head_is_asked_where_the_answer_stands_and_nowhere_else():
    judge, seen = Asked(eye()), []
    head = judge.model.get_output_embeddings()
    head.register_forward_hook(lambda module, given, out: seen.append(out.shape[1]))
    judge([renderings()["red circle"][0]] * 2, prompts(["red circle", "blue"]))
    assert seen == [3]  # two words and an end token, whatever the other row's answer
