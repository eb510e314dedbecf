"""HPSv3 on a small vision-language model, compared with its formula row by row."""

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from test_asked import write_eye
from torch.nn.functional import linear

from tandem.config import compose
from tandem.hub import read_processor
from tandem.policies.vision.tiny_vlm import tiny_vlm
from tandem.rewards.hpsv3 import RATED, HpsV3
from tandem.rewards.result import Missing
from tandem.types import Prompt

QUESTION = f"how many {{text}} ? {RATED} what"
TEXTS = ("red circle", "blue")


def make_model():
    """A model with one more token, and a head with HPSv3's names."""
    model, processor = tiny_vlm(seed=0)
    torch.manual_seed(0)
    model.resize_token_embeddings(len(processor.tokenizer) + 1)
    sizes = {0: (8, model.config.text_config.hidden_size), 3: (4, 8), 5: (2, 4)}
    head = {f"rm_head.{n}.weight": torch.randn(size) for n, size in sizes.items()}
    return model.eval(), head | {f"rm_head.{n}.bias": torch.randn(x[:1]) for n, x in sizes.items()}


def write_hpsv3(folder):
    model, head = make_model()
    weights = {n: x.clone() for n, x in model.state_dict().items() if n != "lm_head.weight"}
    save_file(weights | head, folder / "hpsv3.safetensors")
    return str(folder / "hpsv3.safetensors")


def by_hand(path, picture, text):
    """One row alone: a square image of the requested area."""
    from transformers import AutoConfig

    processor = read_processor(path, AutoConfig.from_pretrained(path))
    processor.tokenizer.add_special_tokens({"additional_special_tokens": [RATED]})
    asked = f"{processor.image_token} {QUESTION.format(text=text)}"
    image = Image.fromarray(picture.numpy()).resize((16, 16))
    given = processor(images=[image], text=[asked], return_tensors="pt")
    model, head = make_model()
    with torch.no_grad():
        states = model.model(**given).last_hidden_state[0]
    x = states[given["input_ids"][0].tolist().index(len(processor.tokenizer) - 1)]
    for n in (0, 3, 5):
        x = linear(x.relu() if n else x, head[f"rm_head.{n}.weight"], head[f"rm_head.{n}.bias"])
    return x[0].item()


def test_a_score_is_what_the_head_says_of_the_rated_token(tmp_path):
    path = str(write_eye(tmp_path))
    pictures = [torch.randint(0, 256, (side, side, 3), dtype=torch.uint8) for side in (16, 40)]
    prompts = [Prompt(id=i, source="s", text=text) for i, text in enumerate(TEXTS)]
    options = {"question": QUESTION, "area": 256, "dtype": "float32"}
    reward = HpsV3(path, write_hpsv3(tmp_path), **options)
    want = [by_hand(path, *row) for row in zip(pictures, TEXTS, strict=True)]
    assert reward(pictures, prompts) == pytest.approx(want, rel=1e-4, abs=1e-5)
    odd = Prompt(id=2, source="s", text=f"a {RATED}")
    first, *rest = reward([pictures[0], *pictures], [odd, *prompts])
    assert isinstance(first, Missing) and rest == pytest.approx(want, rel=1e-4, abs=1e-5)
    with pytest.raises(ValueError, match=r"question must contain <\|Reward\|>"):
        HpsV3(path, "none.safetensors", **(options | {"question": "what ?"}))
    with pytest.raises(ValueError, match=r"HPSv3.pth is not a .safetensors"):
        HpsV3(path, "HPSv3.pth", **options)


def test_the_question_is_the_published_one_around_the_text():
    chosen = ["model=tiny_flow", "reward=hpsv3", "reward.hpsv3.function.weights=w.safetensors"]
    question = compose(chosen).reward.hpsv3.function.question
    assert question.count("{text}") == question.count(RATED) == 1
    assert question.format(text="a cat").endswith(f"this image: {RATED}\n\nEND\n")
