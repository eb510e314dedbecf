"""PickScore and CLIP score, compared with plain calls of transformers on one image and one text."""

import json

import pytest
import torch
from PIL import Image
from tiny_clip import write_clip, write_processor
from torch.testing import assert_close

from tandem.config import ConfigError, build, check, compose
from tandem.data.images import add_marks
from tandem.policies.flow.embeddings import input_of
from tandem.rewards import Reward, Rewards
from tandem.rewards.clip_score import ClipScore
from tandem.rewards.pickscore import PickScore
from tandem.types import Picture, Prompt

TEXTS = ["red circle", "", "a green square, over and over: " + "again " * 30, "red circle", "Tür"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_clip(tmp_path_factory.mktemp("clip")))


@pytest.fixture(scope="module")
def pictures():
    generator = torch.Generator().manual_seed(0)
    sizes = [(32, 32), (48, 40), (33, 64), (32, 32), (20, 50)]  # larger, smaller, wider, higher
    pictures = []
    for height, width in sizes:
        coarse = torch.rand(1, 3, 4, 4, generator=generator)
        fine = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
        pictures.append((fine[0].permute(1, 2, 0) * 255).round().byte())
    return pictures


def prompts(texts=TEXTS):
    return [Prompt(id=i, source="s", text=text) for i, text in enumerate(texts)]


def plainly(folder, picture, text):
    """One image and one text, as in the model card of PickScore: cosine and logit."""
    from transformers import CLIPModel, CLIPProcessor

    model = CLIPModel.from_pretrained(folder).eval()
    processor = CLIPProcessor.from_pretrained(folder)
    image = Image.fromarray(picture.numpy())
    form = {"padding": True, "truncation": True, "max_length": 77, "return_tensors": "pt"}
    with torch.no_grad():
        out = model(**processor(images=[image], text=[text], **form))
    return (out.image_embeds * out.text_embeds).sum().item(), out.logits_per_image.item()


@pytest.fixture(scope="module")
def plain(folder, pictures):
    pairs = [plainly(folder, *pair) for pair in zip(pictures, TEXTS, strict=True)]
    cosines, logits = zip(*pairs, strict=True)
    return torch.tensor(cosines), torch.tensor(logits)


def test_pickscore_is_the_published_formula_over_26(folder, pictures, plain):
    got = torch.tensor(PickScore(folder, batch_size=2)(pictures, prompts()))
    assert_close(got, plain[1] / 26, atol=1e-6, rtol=1e-6)
    assert got.max() - got.min() > 0.05  # the model distinguishes them
    published = PickScore(folder, divisor=1.0)(pictures, prompts())
    assert_close(torch.tensor(published), plain[1], atol=2e-5, rtol=1e-6)


def test_clip_score_is_100_times_the_cosine_and_0_below_it(folder, pictures, plain):
    got = torch.tensor(ClipScore(folder)(pictures, prompts()))
    assert plain[0].min() < 0 < plain[0].max()
    assert_close(got, 100 * plain[0].clamp(min=0), atol=1e-4, rtol=1e-6)


def test_a_score_does_not_depend_on_its_batch(folder, pictures):
    whole = PickScore(folder, batch_size=16)(pictures * 3, prompts(TEXTS * 3))
    cut = PickScore(folder, batch_size=4)(pictures * 3, prompts(TEXTS * 3))
    alone = PickScore(folder, batch_size=1)
    single = [alone([p], [q])[0] for p, q in zip(pictures, prompts(), strict=True)]
    for other in (cut, whole[5:10] * 3, single * 3):
        assert whole == pytest.approx(other, abs=1e-6)


def test_the_end_of_a_text_beyond_77_tokens_is_not_read(folder, pictures):
    longest = "again " * 30
    cut = PickScore(folder)([pictures[0]] * 2, prompts([longest, longest + "and again"]))
    assert cut[0] == cut[1]


def test_a_processor_may_lie_elsewhere_and_one_in_the_folder_is_preferred(folder, tmp_path):
    bare = str(write_clip(tmp_path / "bare", processor=False))
    processor = str(write_processor(tmp_path / "processor"))
    picture, asked = torch.zeros(32, 32, 3, dtype=torch.uint8), prompts(["red"])
    want = PickScore(folder)([picture], asked)
    assert PickScore(bare, processor=processor)([picture], asked) == want
    assert PickScore(folder, processor="/no/such/folder")([picture], asked) == want


def test_no_weight_of_it_learns_and_it_sits_where_it_is_told(folder):
    score = PickScore(folder, dtype="bfloat16", device="cpu")
    assert not any(weight.requires_grad for weight in score.clip.model.parameters())
    assert not score.clip.model.training
    assert (score.clip.model.dtype, score.clip.model.device.type) == (torch.bfloat16, "cpu")


def test_half_precision_stays_close(folder, pictures, plain):
    got = PickScore(folder, dtype="bfloat16")(pictures, prompts())
    assert_close(torch.tensor(got), plain[1] / 26, atol=2e-2, rtol=0)


def refusal(make):
    with pytest.raises(ValueError, match=r"^reward\.") as refused:
        make()
    line = str(refused.value)
    assert "\n" not in line
    assert len(line) < 600  # the command that converts a pickle contains a path three times
    return line


KEY = "reward.pickscore.function"


def test_what_cannot_be_loaded_is_one_line_that_names_the_key(folder, tmp_path):
    missing = "/no/such/folder: there is no such folder"
    assert refusal(lambda: PickScore("/no/such/folder")) == f"{KEY}.path={missing}"
    bare = str(write_clip(tmp_path / "bare", processor=False))
    no_processor = refusal(lambda: PickScore(bare, processor="/no/such/folder"))
    assert no_processor == f"{KEY}.processor={missing}"
    nothing = f"{KEY}.path={bare} holds no preprocessor_config.json; set {KEY}.processor"
    assert refusal(lambda: PickScore(bare)) == nothing
    write_processor(tmp_path / "bare")
    for file in (tmp_path / "bare").glob("*token*"):
        file.unlink()
    assert "tokenizer" in refusal(lambda: PickScore(bare))
    unheard = "nobody/never-published-this-model"
    assert refusal(lambda: PickScore(unheard)).startswith(f"{KEY}.path={unheard} is ")
    assert refusal(lambda: ClipScore("/no/such/folder")).startswith("reward.clip_score.function.")


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"device": "gpu"}, "device=gpu of a reward cannot be used: "),
        ({"device": "cuda:99"}, "device=cuda:99 of a reward cannot be used: "),
        ({"batch_size": 0}, "batch_size=0 of a reward must be at least 1"),
    ],
)
def test_a_place_to_compute_that_is_none_is_one_line(folder, numbers, said):
    with pytest.raises(ValueError, match=f"^{said}") as refused:
        PickScore(folder, **numbers)
    assert "\n" not in str(refused.value)


def test_weights_are_never_made_up_and_never_unpickled(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = write_clip(tmp_path)
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name: x for name, x in weights.items() if name != "visual_projection.weight"},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    lacking = refusal(lambda: PickScore(str(folder)))
    assert lacking.endswith("lacks 1 weights, such as visual_projection.weight")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    assert "a pickle, which runs code" in refusal(lambda: PickScore(str(folder)))


def test_code_beside_the_weights_is_not_run(tmp_path):
    folder = write_clip(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    PickScore(str(folder))
    assert not (folder / "ran").exists()


def test_an_edited_picture_is_scored_for_the_text_that_the_model_reads(folder, pictures):
    height, width, _ = pictures[0].shape
    shown = Picture(name="a", height=height, width=width, load=lambda: pictures[0])
    edit = add_marks(Prompt(id=0, source="s", text="red circle", images=(shown,)))
    assert edit.text == "<image>red circle"
    assert input_of(edit).text == "red circle"
    for score in (PickScore(folder), ClipScore(folder)):
        assert score(pictures[1:2], [edit]) == score(pictures[1:2], prompts(["red circle"]))


def test_a_chat_has_no_picture_and_is_counted(folder, pictures):
    chat = Prompt(id=7, source="s", messages=({"role": "user", "content": "red"},))
    values, faults = Reward(PickScore(folder))(pictures[:1], [chat])
    assert values == [None]
    assert list(faults) == ["raised ValueError: 'prompt 7 of s is a chat, not a text'"]


def test_both_are_composed_at_the_command_line_before_any_weight(folder, pictures):
    told = ["model=tiny_flow", "reward=[pickscore,clip_score]", "reward.clip_score.weight=0.01"]
    check(compose(told))  # names of the hub, which cannot be reached: nothing was loaded
    paths = [f"reward.{name}.function.path={folder}" for name in ("pickscore", "clip_score")]
    cfg = compose([*told, *paths])
    check(cfg)
    rewards = Rewards(build(cfg.reward, "reward"))
    scores = rewards(pictures, prompts())
    assert list(scores.parts) == ["pickscore", "clip_score"]
    want = scores.parts["pickscore"] + 0.01 * scores.parts["clip_score"]
    assert_close(scores.total, want)


def test_texts_have_no_pickscore():
    with pytest.raises(ConfigError, match=r"^reward\.pickscore reads pictures, but model=tiny_lm"):
        check(compose(["model=tiny_lm", "reward=pickscore"]))
