"""The workloads: the embedded model, and a grid of random Qwen3s with their own prompts."""

from __future__ import annotations

import itertools
import json
import random
import zlib
from dataclasses import dataclass
from pathlib import Path

NUM_PROMPTS = 512
MAX_NEW_TOKENS = 32
FLAT = "flat"  # the answer of a prompt whose group always ties

SIZES = {  # of a Qwen3
    "0.3M": {"vocab_size": 2_048, "hidden_size": 64, "intermediate_size": 224, "layers": 3},
    "0.8M": {"vocab_size": 2_048, "hidden_size": 128, "intermediate_size": 384, "layers": 3},
    "20M": {"vocab_size": 32_768, "hidden_size": 256, "intermediate_size": 1024, "layers": 12},
}
PROMPTS_PER_STEP = {"0.3M": 16, "0.8M": 16, "20M": 4}
ENDS = {"equal": 0, "ragged": 16}  # one in this many tokens ends an answer: lengths are geometric
TIED = {"all": 0, "half": 2}  # one in this many groups of every step ties
PROMPT_TOKENS = (16, 256)  # on average: uniform from half to three halves of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    name: str
    says: str  # one line for the report
    overrides: tuple[str, ...]  # of `python train.py`
    steps: int  # training steps, including the warm-up
    reward: str  # the baselines' reward, in `step_trl.REWARDS`


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell of the grid."""

    size: str
    lengths: str
    informative: str
    prompt: int

    @property
    def name(self) -> str:
        return f"{self.size} {self.lengths} {self.informative} {self.prompt}"


CELLS = {
    cell.name: cell
    for size, lengths, informative, prompt in itertools.product(SIZES, ENDS, TIED, PROMPT_TOKENS)
    if (cell := Cell(size=size, lengths=lengths, informative=informative, prompt=prompt))
}


def embedded_workload(folder: Path, *, steps: int) -> Workload:
    """The embedded model and its recipe; prompts are drawn uniformly, equal for all programs."""
    return Workload(
        name="tiny_lm",
        says="the embedded model and recipe (0.31 M parameters, 64 prompts x 8, 2 minibatches)",
        overrides=("data/curriculum=uniform", *silent(folder, steps)),
        steps=steps,
        reward="exact_match",
    )


def in_grid(cell: Cell, folder: Path, *, steps: int) -> Workload:
    """A Qwen3 with random weights, created here and loaded like any other."""
    model, prompts, asked = folder / "model", folder / "prompts.jsonl", PROMPTS_PER_STEP[cell.size]
    save_model(model, cell)
    save_prompts(prompts, cell)
    return Workload(
        name=cell.name,
        says=(
            f"a Qwen3 of {cell.size} parameters, {asked} prompts x 8 answers, 2 minibatches, "
            f"{cell.lengths} lengths, {cell.informative} of the groups informative, prompts of "
            f"{cell.prompt} tokens"
        ),
        overrides=(
            "algorithm=grpo", "model=hf", f"model.path={model}", "data=jsonl",
            f"data.path={prompts}", "data.held_out=0", "plugins=[grid_reward]", "reward=by_text",
            f"rollout.max_new_tokens={MAX_NEW_TOKENS}", "rollout.max_rows=128",
            f"prompts_per_step={asked}", "group_size=8", "num_minibatches=2",
            "algorithm.loss.clip_high=0.28", "algorithm.kl.coef=0", "algorithm.entropy.coef=0",
            *silent(folder, steps),
        ),
        steps=steps,
        reward="by_text",
    )  # fmt: skip


def score(text: str, answer: str) -> float:
    """A number in [0, 1) that differs between answers; 0 in groups that must tie."""
    return 0.0 if answer == FLAT else zlib.crc32(text.encode()) / 2**32


def silent(folder: Path, steps: int) -> tuple[str, ...]:
    """Training steps and the record only: no evaluation, no checkpoint but the last."""
    return (
        f"iterations={steps}",
        "evaluation.every=null",
        "checkpoints.every=1000",
        "trainer=cpu",
        "threads=1",
        f"run_dir={folder}/run",
    )


def save_model(folder: Path, cell: Cell) -> None:
    """Random weights, and a tokenizer in which every token is a word."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    size = SIZES[cell.size]
    config = Qwen3Config(
        vocab_size=size["vocab_size"],
        hidden_size=size["hidden_size"],
        intermediate_size=size["intermediate_size"],
        num_hidden_layers=size["layers"],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=size["hidden_size"] // 4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
    )
    model = Qwen3ForCausalLM(config)
    ends = size["vocab_size"] // ENDS[cell.lengths] if ENDS[cell.lengths] else 1
    model.generation_config.eos_token_id = list(range(1, 1 + ends))
    model.save_pretrained(folder)
    known = {"<pad>": 0, "<eos>": 1, "<unk>": 2}
    words = known | {word(i): i for i in range(3, size["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, padding_side="left", **special
    ).save_pretrained(folder)


def save_prompts(path: Path, cell: Cell) -> None:
    """Prompts whose groups tie in the same share of every step: they are trained in the order of
    the first epoch."""
    from tandem.data.stream import order_of_epoch

    place = order_of_epoch(0, 0, NUM_PROMPTS).argsort().tolist()
    chance = random.Random(0)
    every, tokens = TIED[cell.informative], SIZES[cell.size]["vocab_size"]
    rows = []
    for i in range(NUM_PROMPTS):
        length = chance.randint(cell.prompt // 2, cell.prompt * 3 // 2)
        text = " ".join(word(chance.randrange(3, tokens)) for _ in range(length))
        rows.append({"prompt": text, "answer": FLAT if every and place[i] % every else "free"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def word(token: int) -> str:
    return f"w{token}"
