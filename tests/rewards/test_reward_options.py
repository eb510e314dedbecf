"""conf/reward: each option has a description, binds to its function, and adds its own key."""

import importlib.util
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from test_asked import write_eye
from test_hpsv3 import write_hpsv3
from test_video_align import write_filmed, write_settings, write_video_reward
from tiny_blip import write_blip, write_image_reward
from tiny_clip import write_clip, write_head
from tiny_detectors import write_coco, write_owl
from tiny_judge import write_judge
from tiny_vision import write_vision

from tandem.config import ConfigError, build, check, compose
from tandem.rewards import Reward, Rewards
from tandem.types import Prompt

FOLDER = Path(__file__).parents[2] / "conf" / "reward"
OPTIONS = sorted(path.stem for path in FOLDER.glob("*.yaml"))
PACKAGES = {
    "math_verify": "math_verify",
    "reasoning_gym": "reasoning_gym",
    "ocr": "rapidocr_onnxruntime",
    "ocr_line": "rapidocr_onnxruntime",
}
CHAT = {"url": "http://127.0.0.1:8000/v1", "model": "m"}
CHOSEN = {
    "target_length": {"function": {"target": 3}},
    "http": {"function": {"url": "http://127.0.0.1:8123"}},
    **{
        name: {"function": {"chat": CHAT}}
        for name in ("judge", "judge_pairs", "judge_groups", "unified_reward")
    },
}  # what the user must give
# Rewards that load weights, with a function that writes such weights.
NETWORKS = {
    "pickscore": write_clip,
    "clip_score": write_clip,
    "reward_model": write_judge,
    "asked": write_eye,
    "hpsv2": write_clip,
    "geneval2": write_eye,
    "hpsv3": write_eye,
    "video_align": write_filmed,
    "image_reward": write_blip,
    "aesthetic": write_clip,
    "dino_similarity": write_vision,
    "dino_diversity": write_vision,
}
FILES = {
    "aesthetic": {"head": write_head},
    "hpsv2": {"weights": lambda folder: None},
    "hpsv3": {"weights": write_hpsv3},
    "video_align": {"weights": write_video_reward, "settings": write_settings},
    "image_reward": {"weights": write_image_reward},
}
DETECTORS = {"geneval": write_coco, "geneval_zero_shot": write_owl}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_says_what_it_is_and_adds_one_reward_of_its_name(name, tmp_path):
    path = FOLDER / f"{name}.yaml"
    assert path.read_text().startswith("# ")
    node = OmegaConf.load(path)
    assert list(node) == [name]
    if name in PACKAGES and importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed")
    chosen = CHOSEN.get(name, {})
    if name in NETWORKS:
        files = {key: write(tmp_path) for key, write in FILES.get(name, {}).items()}
        chosen = {"function": {"path": str(NETWORKS[name](tmp_path)), **files}}
    if name in DETECTORS:
        parts = {"detector": DETECTORS[name], "colours": write_clip}
        paths = {part: {"path": str(write(tmp_path / part))} for part, write in parts.items()}
        chosen = {"function": paths}
    rewards = build(OmegaConf.merge(node, {name: chosen}), "reward")
    assert isinstance(rewards[name], Reward)


def test_a_list_of_rewards_merges_in_its_order():
    overrides = ["reward=[regex_answer,length]", "reward.length.function.limit=2"]
    rewards = Rewards(build(compose([*overrides, "reward.length.weight=0.5"]).reward, "reward"))
    assert list(rewards.components) == ["regex_answer", "length"]
    scores = rewards(["so 41"], [Prompt(id=0, source="t", text="?", answer="41.0")])
    assert scores.parts["regex_answer"].tolist() == [1.0]
    assert scores.parts["length"].tolist() == [-1.0]
    assert scores.total.tolist() == [0.5]


def test_a_misspelt_number_of_a_reward_is_refused():
    with pytest.raises(ConfigError, match=r"reward\.length\.function\.limmit"):
        compose(["reward=length", "reward.length.function.limmit=2"])


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("length", "limit"),
        ("target_length", "target"),
        ("nearest_rendering", "width"),
        ("crisp_rendering", "margin"),
        ("crisp_rendering", "limit"),
    ],
)
def test_a_number_that_a_reward_divides_by_is_not_0(name, key):
    number = f"reward.{name}.function.{key}"
    with pytest.raises(ConfigError, match=rf"{number}=0(\.0)?: must be positive"):
        check(compose([f"reward={name}", f"{number}=0"]))


def test_every_option_may_be_given_a_range():
    ranges = [f"reward.{name}.range=[0,1]" for name in OPTIONS]
    nodes = compose([f"reward=[{','.join(OPTIONS)}]", *ranges]).reward
    assert list(nodes) == OPTIONS
    for name, node in nodes.items():
        assert (node.range, "range" in node.function) == ([0, 1], False), name


def test_a_range_is_set_on_the_command_line():
    cfg = compose(["reward=exact_match", "reward.exact_match.range=[0,1]"])
    check(cfg)
    rewards = Rewards(build(cfg.reward, "reward"))
    prompts = [Prompt(id=i, source="t", text="?", answer="a") for i in range(2)]
    assert rewards(["a", "b"], prompts).total.tolist() == [1.0, -1.0]


def test_a_range_that_falls_is_refused_before_any_weight():
    with pytest.raises(
        ConfigError,
        match=r"^reward\.exact_match\.range=\[1\.0, 0\.0\]: list the lowest number first",
    ):
        check(compose(["reward.exact_match.range=[1,0]"]))


def test_a_range_of_one_number_is_refused():
    with pytest.raises(
        ConfigError, match=r"^reward\.exact_match\.range: expected \[float, float\]"
    ):
        check(compose(["reward.exact_match.range=[1]"]))


OWN_JUDGE = """
from tandem import register_reward
from tandem.rewards import pairwise

@register_reward
@pairwise
def longer_of_two(first, second, prompt, *, tie: float = 0.5):
    return tie if len(first) == len(second) else float(len(first) > len(second))
"""


@pytest.fixture
def judge(tmp_path, monkeypatch):
    (tmp_path / "own_judge_of_two.py").write_text(OWN_JUDGE)
    monkeypatch.syspath_prepend(tmp_path)
    return ["plugins=[own_judge_of_two]", "reward=longer_of_two"]


def test_a_reward_that_compares_is_an_option_like_others(judge):
    cfg = compose([*judge, "reward.longer_of_two.function.tie=0.25"])
    check(cfg)
    prompts = [Prompt(id=0, source="t", text="?")] * 3
    rewards = Rewards(build(cfg.reward, "reward"))
    # The second ranks before the third, and the first gets a quarter of a tie.
    assert rewards(["a", "bb", "cc"], prompts, torch.zeros(3)).total.tolist() == [0, 0.625, 0.875]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["algorithm=reinforce", "group_size=1"], "but group_size=1 leaves each alone; set group"),
        (
            ["algorithm=remax"],
            "but algorithm/sampling_strategy=remax scores the greedy answer alone",
        ),
    ],
)
def test_a_reward_that_compares_needs_somebody_to_compare(judge, overrides, said):
    with pytest.raises(ConfigError, match=rf"^reward\.longer_of_two compares .*{said}"):
        check(compose([*judge, *overrides]))


def test_where_nothing_is_sampled_nothing_is_compared(judge):
    check(compose([*judge, "algorithm=sft"]))
