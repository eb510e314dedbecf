"""What is measured: two models, their prompts, and the numbers of the algorithm."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

VOCABULARY = 32_768
NUM_ENDS = 1_638  # token ids that end an answer: an untrained model takes one in 20 tokens
NUM_PROMPTS = 1_024
SHORTEST_PROMPT, LONGEST_PROMPT = 8, 24  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    name: str
    says: str  # one line for the report
    overrides: tuple[str, ...]  # of `python train.py`
    steps: int  # training steps, the warm-up among them
    reward: str  # how the baselines score, in `step_trl.REWARDS`


def tiny(folder: Path, *, steps: int) -> Workload:
    """The embedded model and its recipe; prompts drawn uniformly, so that all see the same."""
    return Workload(
        name="tiny_lm",
        says="the embedded model and recipe (0.31 M parameters, 64 prompts x 8, 2 minibatches)",
        overrides=("data/curriculum=uniform", *silent(folder, steps)),
        steps=steps,
        reward="exact_match",
    )


def qwen3(folder: Path, *, steps: int) -> Workload:
    """A Qwen3 of 20 M parameters, made here and loaded like any other."""
    model, prompts = folder / "qwen3_20m", folder / "prompts.jsonl"
    save_model(model)
    save_prompts(prompts)
    return Workload(
        name="qwen3_20m",
        says="a Qwen3 of 20 M parameters, 32 768 tokens (16 prompts x 8, 2 minibatches)",
        overrides=(
            "algorithm=grpo",
            "model=hf",
            f"model.path={model}",
            f"data.path={prompts}",
            "reward=target_length",
            "reward.target_length.function.target=60",
            "rollout.max_new_tokens=32",
            "rollout.max_rows=128",
            "prompts_per_step=16",
            "group_size=8",
            "num_minibatches=2",
            "algorithm.loss.clip_high=0.28",
            "algorithm.kl.coef=0",
            "algorithm.entropy.coef=0",
            *silent(folder, steps),
        ),
        steps=steps,
        reward="target_length",
    )


def silent(folder: Path, steps: int) -> tuple[str, ...]:
    """Training steps and the record alone: no evaluation, no checkpoint but the last."""
    return (
        f"iterations={steps}",
        "evaluation.every=null",
        "checkpoints.every=1000",
        "trainer=cpu",
        "threads=1",
        f"run_dir={folder}/run",
    )


def save_model(folder: Path) -> None:
    """Random weights, and a tokenizer whose every token is a word."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=12,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = list(range(1, 1 + NUM_ENDS))
    model.save_pretrained(folder)
    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2} | {word(i): i for i in range(3, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, padding_side="left", **special
    ).save_pretrained(folder)


def save_prompts(path: Path) -> None:
    chance = random.Random(0)
    lengths = [chance.randint(SHORTEST_PROMPT, LONGEST_PROMPT) for _ in range(NUM_PROMPTS)]
    texts = [" ".join(word(chance.randrange(3, VOCABULARY)) for _ in range(n)) for n in lengths]
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))


def word(token: int) -> str:
    return f"w{token}"
