"""HPSv2, the aesthetic score and UnifiedReward, compared with plain calculations on one image."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from tiny_clip import clip_tokenizer, write_clip
from tiny_open_clip import OpenClip
from torch.testing import assert_close

from tandem.config import compose
from tandem.rewards.aesthetic import Aesthetic
from tandem.rewards.hpsv2 import Hpsv2, square
from tandem.rewards.judge import score_in
from tandem.types import Prompt

TEXTS = ["red circle", "a green square", "Tür"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_clip(tmp_path_factory.mktemp("clip")))


@pytest.fixture(scope="module")
def pictures():
    generator = torch.Generator().manual_seed(0)
    sizes = [(32, 32), (48, 40), (20, 64)]
    return [torch.randint(256, (*size, 3), generator=generator).byte() for size in sizes]


def prompts():
    return [Prompt(id=i, source="s", text=text) for i, text in enumerate(TEXTS)]


def prepare(folder, picture):
    from transformers import CLIPImageProcessorPil

    images = CLIPImageProcessorPil.from_pretrained(folder)
    return images(Image.fromarray(picture.numpy()), return_tensors="pt")["pixel_values"]


def test_hpsv2_is_open_clip_s_own_cosine_with_its_own_weights(folder, pictures, tmp_path):
    torch.manual_seed(1)
    tokenizer = clip_tokenizer()
    model = OpenClip(len(tokenizer), tokenizer.eos_token_id).eval()
    weights = str(tmp_path / "hps.safetensors")
    save_file({name: x.contiguous() for name, x in model.state_dict().items()}, weights)
    got = Hpsv2(folder, weights=weights, batch_size=2)(pictures, prompts())
    form = {"padding": "max_length", "max_length": 77, "return_tensors": "pt"}
    with torch.no_grad():
        for picture, text, score in zip(pictures, TEXTS, got, strict=True):
            shown = Image.new("RGB", (max(picture.shape),) * 2)
            left, top = ((max(picture.shape) - n) // 2 for n in (picture.shape[1], len(picture)))
            shown.paste(Image.fromarray(picture.numpy()), (left, top))
            seen = model.see(prepare(folder, torch.from_numpy(np.array(shown))))
            read = model.read(tokenizer([text], **form)["input_ids"])
            assert score == pytest.approx((seen * read).sum().item(), abs=1e-5)
    assert max(got) - min(got) > 0.01
    assert Hpsv2(folder)(pictures, prompts()) != got  # the weights were read


def test_a_picture_stands_in_the_middle_of_a_black_square():
    wide = torch.full((2, 5, 3), 7, dtype=torch.uint8)
    assert square(wide)[..., 0].tolist() == [[0] * 5, [7] * 5, [7] * 5, [0] * 5, [0] * 5]
    assert torch.equal(square(wide[:, :2]), wide[:, :2])


def test_the_aesthetic_score_is_five_products_of_what_clip_sees(folder, pictures, tmp_path):
    from transformers import CLIPModel

    torch.manual_seed(2)
    sizes = [16, 12, 8, 6, 4, 1]
    layers = [torch.nn.Linear(*pair) for pair in pairwise(sizes)]
    numbers = (0, 2, 4, 6, 7)  # dropout layers are between them
    head = str(tmp_path / "head.safetensors")
    save_file(
        {
            f"layers.{n}.{kind}": getattr(layer, kind).detach()
            for n, layer in zip(numbers, layers, strict=True)
            for kind in ("weight", "bias")
        },
        head,
    )
    got = Aesthetic(folder, head, batch_size=2)(pictures, prompts())
    model = CLIPModel.from_pretrained(folder).eval()
    with torch.no_grad():
        for picture, score in zip(pictures, got, strict=True):
            seen = model.get_image_features(pixel_values=prepare(folder, picture)).pooler_output
            x = seen / seen.norm(dim=-1, keepdim=True)
            for layer in layers:
                x = layer(x)
            assert_close(torch.tensor(score), x[0, 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda at: Aesthetic(at, "a.pth"),
            r"head=a\.pth is not a \.safetensors file; .*convert it",
        ),
        (lambda at: Aesthetic(at, "no.safetensors"), r"head=no\.safetensors cannot be read"),
        (
            lambda at: Hpsv2(at, weights="a.pt"),
            r"weights=a\.pt is not a \.safetensors file; .*convert",
        ),
        (lambda at: Hpsv2(at, weights="no.safetensors"), r"no\.safetensors do not fit this"),
    ],
)
def test_pickles_and_files_that_are_not_there_are_one_line(folder, make, said):
    with pytest.raises(ValueError, match=said) as refused:
        make(folder)
    assert "\n" not in str(refused.value)


def test_weights_of_another_model_are_refused(folder, tmp_path):
    weights = str(tmp_path / "small.safetensors")
    save_file({"visual.proj": torch.zeros(16, 16)}, weights)
    with pytest.raises(ValueError, match=r"do not fit this model: .*Missing key"):
        Hpsv2(folder, weights=weights)
    head = str(tmp_path / "head.safetensors")
    save_file({"0.weight": torch.zeros(1, 5), "0.bias": torch.zeros(1)}, head)
    with pytest.raises(ValueError, match="expects features of another model"):
        Aesthetic(folder, head)


def test_unified_reward_is_a_judge_whose_final_score_is_read():
    node = compose(["model=tiny_flow", "reward=unified_reward"]).reward.unified_reward.function
    assert [*node.scale] == [1.0, 5.0]
    assert "{output}" in node.template.text and "Text Caption: [{prompt}]" in node.template.text
    assert score_in("It shows a cat.\nFinal Score: 4.5", 1.0, 5.0) == 4.5
    assert not isinstance(score_in("My final score is 4", 1.0, 5.0), float)
