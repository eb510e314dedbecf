"""ImageReward, compared with its formula in plain torch, using the names of its own weights."""

import pytest
import torch
from policies.flow.tiny_text import letters
from safetensors.torch import save_file
from tiny_blip import HEADS, LAYERS, PATCH, WIDTH, write_blip, write_image_reward
from torch.nn import functional as F

from tandem.rewards.image_reward import ImageReward
from tandem.types import Prompt

TEXTS = ("a red circle", "x" * 60)


def by_hand(w, pixels, ids, mask):
    """[N] from images [N, 3, 224, 224] and tokens [N, L]."""

    def linear(x, name):
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(x, name, eps=1e-12):
        return F.layer_norm(x, (WIDTH,), w[f"{name}.weight"], w[f"{name}.bias"], eps)

    def attend(q, k, v, keep=None):
        q, k, v = (x.unflatten(-1, (HEADS, -1)).transpose(1, 2) for x in (q, k, v))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if keep is not None:
            scores = scores.masked_fill(~keep[:, None, None], -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    see = "blip.visual_encoder"
    weight, bias = (w[f"{see}.patch_embed.proj.{x}"] for x in ("weight", "bias"))
    x = F.conv2d(pixels, weight, bias, stride=PATCH).flatten(2).mT
    x = torch.cat([w[f"{see}.cls_token"].expand(len(x), -1, -1), x], 1) + w[f"{see}.pos_embed"]
    for n in range(LAYERS):
        own = f"{see}.blocks.{n}"
        q, k, v = linear(norm(x, f"{own}.norm1", 1e-6), f"{own}.attn.qkv").chunk(3, -1)
        x = x + linear(attend(q, k, v), f"{own}.attn.proj")
        inside = linear(norm(x, f"{own}.norm2", 1e-6), f"{own}.mlp.fc1")
        x = x + linear(F.gelu(inside), f"{own}.mlp.fc2")
    seen = norm(x, f"{see}.norm", 1e-6)
    words = w["blip.text_encoder.embeddings.word_embeddings.weight"][ids]
    places = w["blip.text_encoder.embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = norm(words + places, "blip.text_encoder.embeddings.LayerNorm")
    for n in range(LAYERS):
        own = f"blip.text_encoder.encoder.layer.{n}"
        for kind, at, keep in (("attention", None, mask), ("crossattention", seen, None)):
            q = linear(x, f"{own}.{kind}.self.query")
            k, v = (
                linear(x if at is None else at, f"{own}.{kind}.self.{name}")
                for name in ("key", "value")
            )
            said = linear(attend(q, k, v, keep), f"{own}.{kind}.output.dense")
            x = norm(said + x, f"{own}.{kind}.output.LayerNorm")
        inside = F.gelu(linear(x, f"{own}.intermediate.dense"))
        x = norm(linear(inside, f"{own}.output.dense") + x, f"{own}.output.LayerNorm")
    x = x[:, 0]
    for n in (0, 2, 4, 6, 7):
        x = linear(x, f"mlp.layers.{n}")
    return (x[:, 0] - 0.16717362830052426) / 1.0333394966054072


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_blip(tmp_path_factory.mktemp("blip"))


def test_a_score_is_that_of_the_authors_formula_with_their_weights(folder):
    from safetensors.torch import load_file
    from transformers import CLIPImageProcessorPil

    torch.manual_seed(0)
    pictures = [*torch.randint(0, 256, (2, 240, 224, 3), dtype=torch.uint8)]
    prompts = [Prompt(id=i, source="s", text=text) for i, text in enumerate(TEXTS)]
    reward = ImageReward(str(folder), write_image_reward(folder), batch_size=1)
    shown = [picture.permute(2, 0, 1) for picture in pictures]
    pixels = CLIPImageProcessorPil()(shown, return_tensors="pt")["pixel_values"]
    form = {"padding": "max_length", "truncation": True, "max_length": 35, "return_tensors": "pt"}
    read = letters()(list(TEXTS), **form)
    weights = load_file(write_image_reward(folder))
    want = by_hand(weights, pixels, read.input_ids, read.attention_mask.bool())
    assert want.std() > 0.1
    assert reward(pictures, prompts) == pytest.approx(want.tolist(), rel=1e-4, abs=1e-5)


def test_other_weights_and_pickles_are_one_line(folder, tmp_path):
    with pytest.raises(
        ValueError, match=r"ImageReward.pt is not a .safetensors file; if you trust"
    ):
        ImageReward(str(folder), "ImageReward.pt")
    save_file({"mlp.layers.0.weight": torch.ones(1, 1)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="do not fit this model: ") as refused:
        ImageReward(str(folder), str(tmp_path / "other.safetensors"))
    assert "\n" not in str(refused.value)
