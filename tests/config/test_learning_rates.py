"""The table of learning rates: its numbers, every preset, and what it does not cover."""

import math
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tandem.config import ConfigError, check, compose
from tandem.config.learning_rates import LEVELS, flow_rate, language_rate

CONF = Path(__file__).parents[2] / "conf"
# Parameters -> the range of rates for full weights of a model of that size.
ISSUE = {
    0.6e9: (5e-6, 1e-5),
    1e9: (1e-6, 5e-6),
    8.2e9: (1e-6, 5e-6),
    10e9: (5e-7, 1e-6),
    70.6e9: (5e-7, 1e-6),
    235e9: (1e-7, 5e-7),
}
MIDDLES = {  # preset -> its default rate, and that with full weights
    "qwen3_0_6b": (7.07e-6, 7.07e-6),
    "qwen3_1_7b": (2.24e-6, 2.24e-6),
    "qwen3_4b": (2.24e-5, 2.24e-6),
    "qwen3_8b": (2.24e-5, 2.24e-6),
    "llama3_8b": (2.24e-5, 2.24e-6),
    "qwen3_14b": (7.07e-6, 7.07e-7),
    "qwen3_32b": (7.07e-6, 7.07e-7),
    "sd3_5_medium": (3e-4, 1e-5),
    "sd3_5_large": (3e-4, 1e-5),
    "flux1_dev": (3e-4, 1e-5),
    "qwen_image": (3e-4, 1e-5),
    "flux1_kontext": (3e-4, 1e-5),
    "qwen_image_edit": (3e-4, 1e-5),
    "qwen_image_2512": (3e-4, 1e-5),
    "sana_1_6b": (3e-4, 1e-5),
    "z_image": (3e-4, 1e-5),
    "z_image_turbo": (3e-4, 1e-5),
    "flux2_dev": (3e-4, 1e-5),
    "flux2_klein": (3e-4, 1e-5),
    "wan2_1_1_3b": (3e-4, 1e-5),
    "wan2_1_14b": (3e-4, 1e-5),
    "wan2_2_5b": (3e-4, 1e-5),
    "wan2_2_14b": (3e-4, 1e-5),
    "wan2_1_i2v_14b": (3e-4, 1e-5),
    "wan2_2_i2v_14b": (3e-4, 1e-5),
    "wan2_2_5b_i2v": (3e-4, 1e-5),
    "hunyuan_video_1_5": (3e-4, 1e-5),
    "hunyuan_video": (3e-4, 1e-5),
    "ltx_2": (3e-4, 1e-5),
    "ltx_video": (3e-4, 1e-5),
    "skyreels_v2_14b": (3e-4, 1e-5),
    "llada_8b": (2.24e-5, 2.24e-6),
    "dream_7b": (2.24e-5, 2.24e-6),
    "tiny_lm": (3e-4, 3e-4),
    "tiny_masked": (3e-4, 3e-4),
    "qwen2_5_vl_3b": (2.24e-5, 2.24e-6),
    "tiny_flow": (1e-3, 1e-3),
    "tiny_vlm": (3e-4, 3e-4),
    "hf": (1e-6, 1e-6),
    "vlm": (1e-6, 1e-6),
}


@pytest.mark.parametrize("size", ISSUE)
def test_full_weights_take_the_row_of_their_size_and_adapters_ten_times_it(size):
    low, high = ISSUE[size]
    full, adapted = (
        [language_rate(level, parameters=size, lora=lora) for level in LEVELS]
        for lora in (False, True)
    )
    assert full == pytest.approx([low, math.sqrt(low * high), high], rel=2e-3)
    assert adapted == pytest.approx([10 * rate for rate in full], rel=1e-9)


def test_where_one_number_is_known_the_range_is_its_half_to_its_double():
    tiny, weights, adapters = (
        [rate(level, parameters=size, lora=lora) for level in LEVELS]
        for rate, size, lora in (
            (language_rate, 3e5, False),
            (flow_rate, 12e9, False),
            (flow_rate, None, True),
        )
    )
    assert tiny == [1.5e-4, 3e-4, 6e-4]
    assert weights == [5e-6, 1e-5, 2e-5]
    assert adapters == [1.5e-4, 3e-4, 6e-4]


def test_every_preset_says_a_size_and_takes_the_middle_of_its_row():
    presets = {path.stem: OmegaConf.load(path) for path in (CONF / "model").glob("[!_]*.yaml")}
    # The parts of a chain have rates of their own: algorithm.segments.
    presets = {name: own for name, own in presets.items() if "_chain" not in own.defaults}
    assert presets.keys() == MIDDLES.keys()
    adapters = OmegaConf.load(CONF / "model" / "_pipeline.yaml").model.lora
    for name, own in presets.items():
        pipeline = {"_pipeline", "_films"} & {x for x in own.defaults if isinstance(x, str)}
        flow = pipeline or name == "tiny_flow"
        lora = adapters if pipeline else own.get("model", {}).get("lora")
        rate, size = (flow_rate if flow else language_rate), own.get("parameters")
        assert (size is None) == (name in ("hf", "vlm"))
        found = [rate("middle", parameters=size, lora=x) for x in (lora is not None, False)]
        assert tuple(found) == MIDDLES[name], name


def test_the_rate_follows_adapters_and_size_and_a_recipe_or_a_user_beats_it():
    rates = {
        "model=qwen3_8b": 2.24e-5,
        "model=qwen3_8b model.lora=null": 2.24e-6,
        "model=sd3_5_medium algorithm=grpo model.lora=null": 1e-5,
        "model=hf parameters=0.5e9": 7.07e-6,
        "model=tiny_lm algorithm=dapo": 2e-4,
        "model=tiny_lm optimizer.lr=5e-3": 5e-3,
    }
    assert {words: compose(words.split()).optimizer.lr for words in rates} == rates


@pytest.mark.parametrize(
    ("words", "said"),
    {
        "model=hf model.path=x data.path=y optimizer.lr=${learning_rate:low}": (
            "optimizer.lr: the range depends on the model size; set it, such as parameters=8.2e9"
        ),
        "optimizer=sgd ~recipe optimizer.lr=${learning_rate:low}": (
            "optimizer.lr: the table is for Adam; with optimizer=sgd, set optimizer.lr to a number"
        ),
        "parameters=0": "parameters=0.0: must be positive",
    }.items(),
)
def test_what_the_table_cannot_say_is_one_line(words, said):
    with pytest.raises(ConfigError) as refused:
        check(compose(words.split()))
    assert str(refused.value) == said
