"""VideoReward on a small Qwen2-VL against its formula row by row, its adapters against peft's."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from policies.vision.vision_families import QWEN, ROPE, TEMPLATE, TEXT, byte_tokenizer, of_qwen
from safetensors.torch import load_file, save_file
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration, Qwen2VLProcessor

from tandem.config import compose
from tandem.hub import without_films
from tandem.rewards.result import Missing
from tandem.rewards.video_align import RATED, VideoAlign
from tandem.types import Prompt

QUESTION = "{text}? <|VQ_reward|> <|MQ_reward|> <|TA_reward|>"
MEANS = {"VQ_mean": 3.0, "VQ_std": 2.0, "MQ_mean": 1.0, "MQ_std": 0.5, "TA_mean": -2.0, "TA_std": 4}
SIZES = ((32, 32), (16, 64))  # of the area that is asked for
OPTIONS = {"question": QUESTION, "area": 1024, "dtype": "float32"}


def make_model():
    """The model with its three tokens, nonzero adapters, and a head."""
    tokenizer = byte_tokenizer(QWEN)
    ids, pixels = of_qwen(tokenizer, 4)
    config = Qwen2VLConfig(
        text_config={
            **TEXT,
            "vocab_size": len(tokenizer) + len(RATED),
            "rope_parameters": {**ROPE, "mrope_section": [1, 1, 2]},
        },
        vision_config={
            "depth": 2, "embed_dim": 16, "num_heads": 2, "patch_size": 4, "hidden_size": 32,
        },
        **ids,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen2VLForConditionalGeneration(config).eval()
    adapters = LoraConfig(r=2, lora_alpha=6, target_modules=["q_proj", "down_proj"])
    model = get_peft_model(model, adapters)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_()
    template = TEMPLATE.replace("'image'", "'video'").format(mark=QWEN[2] + QWEN[1] + QWEN[3])
    processor = without_films(Qwen2VLProcessor)(pixels, tokenizer, chat_template=template)
    return model, processor, torch.randn(3, 32)


def write_filmed(folder):
    model, processor, _ = make_model()
    model.base_model.model.config.save_pretrained(folder / "filmed")
    processor.save_pretrained(folder / "filmed")
    return folder / "filmed"


def write_video_reward(folder):
    """The authors' format: all names are peft's, including the head's."""
    model, _, head = make_model()
    weights = {n: x.clone() for n, x in model.state_dict().items() if "lm_head" not in n}
    weights["base_model.model.rm_head.weight"] = head
    save_file(weights, folder / "video_reward.safetensors")
    return str(folder / "video_reward.safetensors")


def write_settings(folder):
    lora = {"lora_r": 2, "lora_alpha": 6, "use_rslora": False}
    path = folder / "model_config.json"
    path.write_text(json.dumps({"peft_lora_config": lora, "inference_config": MEANS}))
    return str(path)


def patches_by_hand(film):
    """Two frames, four pixels high and wide, per row; a token's four patches are consecutive."""
    mean, std = (
        torch.tensor([0.48145466, 0.4578275, 0.40821073]),
        [0.26862954, 0.26130258, 0.2757771],
    )
    levels = (film / 255 - mean) / torch.tensor(std)
    rows = []
    for time in range(0, len(film), 2):
        for top in range(0, film.shape[1], 8):
            for left in range(0, film.shape[2], 8):
                for y, x in ((0, 0), (0, 4), (4, 0), (4, 4)):
                    one = levels[time : time + 2, top + y : top + y + 4, left + x : left + x + 4]
                    rows.append(one.permute(3, 0, 1, 2).flatten())  # colour, time, height, width
    return torch.stack(rows)


def by_hand(film, text):
    """The three scores of one video that is read whole at its own size."""
    model, processor, head = make_model()
    network = model.merge_and_unload()
    tokenizer = processor.tokenizer
    tokenizer.add_special_tokens({"additional_special_tokens": [*RATED.values()]})
    count = len(film) // 2 * film.shape[1] // 8 * film.shape[2] // 8
    seen = QWEN[2] + QWEN[1] * count + QWEN[3]
    ids = tokenizer(f"[user]{seen}{QUESTION.format(text=text)}[assistant]")["input_ids"]
    film_id = tokenizer.convert_tokens_to_ids(QWEN[1])
    with torch.no_grad():
        states = network.model(
            input_ids=torch.tensor([ids]),
            mm_token_type_ids=torch.tensor([[2 * (one == film_id) for one in ids]]),
            pixel_values_videos=patches_by_hand(film),
            video_grid_thw=torch.tensor([[len(film) // 2, film.shape[1] // 4, film.shape[2] // 4]]),
        ).last_hidden_state[0]
    said = {}
    for number, (name, token) in enumerate(RATED.items()):
        raw = states[ids.index(tokenizer.convert_tokens_to_ids(token))] @ head[number]
        said[name] = ((raw - MEANS[f"{name}_mean"]) / MEANS[f"{name}_std"]).item()
    return said


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judge")
    return str(write_filmed(folder)), write_video_reward(folder), write_settings(folder)


@pytest.fixture(scope="module")
def films():
    torch.manual_seed(1)
    return [torch.randint(0, 256, (4, *size, 3), dtype=torch.uint8) for size in SIZES]


PROMPTS = [Prompt(id=i, source="s", text=text) for i, text in enumerate(("a", "red circle"))]


@pytest.mark.parametrize("part", ["overall", *RATED])
def test_a_score_is_what_its_matrix_says_at_the_tokens_of_the_question(files, films, part):
    reward = VideoAlign(*files, part=part, **OPTIONS)
    every = [by_hand(film, prompt.text) for film, prompt in zip(films, PROMPTS, strict=True)]
    want = [sum(said.values()) if part == "overall" else said[part] for said in every]
    assert reward(films, PROMPTS) == pytest.approx(want, rel=1e-4, abs=1e-4)


def test_a_longer_film_is_looked_at_evenly_and_at_frames_in_pairs(files, films):
    reward = VideoAlign(*files, frames=5, **OPTIONS)
    film = films[0][[0, 0, 1, 2, 2, 3, 3]]
    assert reward.ask(film, "a")["video_grid_thw"].tolist() == [[2, 8, 8]]
    assert reward([film], PROMPTS[:1]) == pytest.approx(reward([films[0]], PROMPTS[:1]))


@pytest.mark.parametrize(("frames", "used"), [(5, 4), (7, 8), (13, 8), (15, 8)])
def test_an_odd_number_of_frames_is_rounded_to_pairs_that_the_film_has(files, films, frames, used):
    film = films[0][[0, 0, 1, 1, 2, 2, 3, 3, 3]]
    reward = VideoAlign(*files, frames=frames, **OPTIONS)
    assert reward.ask(film, "a")["video_grid_thw"][0, 0] == used // 2


def test_frames_are_brought_to_the_area_in_whole_patches(files, films):
    reward = VideoAlign(*files, **(OPTIONS | {"area": 256}))
    assert reward.ask(films[1], "a")["video_grid_thw"].tolist() == [[2, 2, 8]]


def test_weights_without_adapters_are_read_as_they_are(files, films, tmp_path):
    model, _, head = make_model()
    whole = {n: x.clone() for n, x in model.merge_and_unload().state_dict().items()}
    whole.pop("lm_head.weight")
    save_file(whole | {"rm_head.weight": head}, tmp_path / "whole.safetensors")
    one, other = (
        VideoAlign(files[0], weights, files[2], **OPTIONS)(films, PROMPTS)
        for weights in (files[1], str(tmp_path / "whole.safetensors"))
    )
    assert one == pytest.approx(other, rel=1e-4, abs=1e-4)


def test_what_cannot_be_judged_is_refused_by_its_key(files, films, tmp_path):
    path, weights, settings = files
    with pytest.raises(ValueError, match=r"question must contain <\|MQ_reward\|> once"):
        VideoAlign(*files, **(OPTIONS | {"question": "<|VQ_reward|>"}))
    with pytest.raises(ValueError, match=r"frames=1: set at least 2"):
        VideoAlign(*files, frames=1, **OPTIONS)
    with pytest.raises(
        ValueError, match=r"weights=model.pth is not a .safetensors file; .*convert it"
    ):
        VideoAlign(path, "model.pth", settings, **OPTIONS)
    (tmp_path / "odd.json").write_text("{}")
    with pytest.raises(ValueError, match=r"settings=.*odd.json is not a model_config.json"):
        VideoAlign(path, weights, str(tmp_path / "odd.json"), **OPTIONS)
    lacking = {n: x for n, x in load_file(weights).items() if "k_proj.weight" not in n}
    save_file(lacking, tmp_path / "lacking.safetensors")
    with pytest.raises(ValueError, match=r"lacking.safetensors do not fit this model: .*k_proj"):
        VideoAlign(path, str(tmp_path / "lacking.safetensors"), settings, **OPTIONS)
    reward = VideoAlign(*files, **OPTIONS)
    with pytest.raises(ValueError, match=r"a film must have at least 2 frames, not \[32, 32, 3\]"):
        reward([films[0][0]], PROMPTS[:1])


@pytest.mark.parametrize("token", [*RATED.values(), QWEN[1]])
def test_a_text_with_a_special_token_costs_no_other_film_its_score(files, films, token):
    odd = Prompt(id=2, source="s", text=f"a {token}")
    reward = VideoAlign(*files, **OPTIONS)
    got = reward([films[0], *films], [odd, *PROMPTS])
    assert isinstance(got[0], Missing) and f"holds {token}, a special token" in str(got[0])
    assert got[1:] == pytest.approx(reward(films, PROMPTS), rel=1e-4, abs=1e-4)


def test_the_question_is_the_published_one_around_the_text():
    chosen = ["model=wan2_1_1_3b", "data=text", "data.path=p.txt", "reward=video_align"]
    files = [f"reward.video_align.function.{key}=x" for key in ("weights", "settings")]
    question = compose([*chosen, *files]).reward.video_align.function.question
    assert all(question.count(token) == 1 for token in ("{text}", *RATED.values()))
    assert question.endswith(f"Text Alignment: {RATED['TA']}\nEND\n")
