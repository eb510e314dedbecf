"""A choice that names a file or a hub model is answered with the words to type."""

import pytest

from tandem.config import ConfigError, compose

REWARD = """
from tandem import register_reward

@register_reward("calm")
def one(output, prompt): return 1.0

@register_reward
def brief(output, prompt): return 1.0
"""
ANSWERS = {
    "model=Qwen/Qwen3-0.6B": "model=qwen3_0_6b",
    "model=black-forest-labs/FLUX.1-dev": "model=flux1_dev",
    "model=Wan-AI/Wan2.2-TI2V-5B-Diffusers": "model=wan2_2_5b or model=wan2_2_5b_i2v",
    "model=Qwen/Qwen2.5-7B": "model=hf model.path=Qwen/Qwen2.5-7B",
    "model=gpt2": "model=hf model.path=gpt2",
    "reward=my.py": "plugins=[my] reward=NAME, where NAME is one of its functions "
    "with @register_reward",
    "reward=../there/my.py": "plugins=[my] reward=NAME, where NAME is one of its functions "
    "with @register_reward, in the folder ../there",
    "reward=/away/my.py": "plugins=[my] reward=NAME, where NAME is one of its functions "
    "with @register_reward, in the folder /away",
    "reward=own/calm.py": "plugins=[own.calm] reward=[calm,brief]",
    "data=prompts.jsonl": "data=jsonl data.path=prompts.jsonl",
    "data=own/rows.csv": "data=hub data.name=own data.split.subset=null data.columns.prompt=COLUMN "
    "data.columns.answer=COLUMN",
    "data=own": "data=folder data.path=own",
    "data=gsm8k": "data=hub data.name=OWNER/gsm8k",
    "data=openai/gsm8k": "data=hub data.name=openai/gsm8k",
}


@pytest.mark.parametrize("word", ANSWERS)
def test_the_words_to_type_are_named(tmp_path, monkeypatch, word):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own/calm.py").write_text(REWARD)
    with pytest.raises(ConfigError) as refused:
        compose([word])
    assert str(refused.value) == f"{word} is not an option; write {ANSWERS[word]}"


@pytest.mark.parametrize("word", ["model=qwen3-0.6b", "model=tiny_lmm", "data=sort_leters"])
def test_a_misspelt_option_is_still_one(word):
    with pytest.raises(ConfigError, match="did you mean"):
        compose([word])


def test_presets_that_begin_like_the_name_come_before_a_model_of_the_hub():
    with pytest.raises(ConfigError) as refused:
        compose(["model=SD3"])
    assert str(refused.value) == (
        "model=SD3 is not an option; there are sd3_5_large, sd3_5_medium, or write model=hf "
        "model.path=SD3"
    )
