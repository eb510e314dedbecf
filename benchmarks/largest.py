"""Presets and the GPUs that they need: `python benchmarks/largest.py [--save]`.

Computed by `estimate=true` from the models' shapes on the hub: no weight is read and nothing was
run. The table gives the smallest number of devices that hold the run, and the memory used on each.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

from tandem.config import check, compose
from tandem.launch.memory_estimate import GIB, parts_of_a_rank, peak

RESULTS = Path(__file__).resolve().parent / "results"
DEVICES = (1, 2, 4, 8, 16, 32)
ROOM = 70  # GiB of a device of 80 GB: libraries and fragmentation take the rest
WORK = (
    "data=dapo_math", "algorithm=dapo", "prompts_per_step=128", "group_size=8",
    "model.gradient_checkpointing=true",
    "rollout.max_prompt_tokens=1024", "rollout.max_new_tokens=2048",
)  # fmt: skip
SHARED = {  # of all Qwen3
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 151_936,
    "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40_960,
    "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
SHAPES = {  # preset -> width, layers, heads, width of the hidden layer, whether embeddings are tied
    "qwen3_0_6b": (1024, 28, 16, 3072, True),
    "qwen3_1_7b": (2048, 28, 16, 6144, True),
    "qwen3_4b": (2560, 36, 32, 9728, True),
    "qwen3_8b": (4096, 36, 32, 12_288, False),
    "qwen3_14b": (5120, 40, 40, 17_408, False),
    "qwen3_32b": (5120, 64, 64, 25_600, False),
}
ALL_WEIGHTS = ("model.lora=null", "model.dtype=float32", "trainer.precision=bf16-mixed")
SERVED = ("rollout=vllm_server", "rollout.engine.url=auto", "rollout.engine.folder=/dev/shm/engine")
LORA = ("model.lora={r:32,alpha:64,target_modules:all-linear}", "model.dtype=bfloat16")
WAYS = {
    "LoRA, `ddp`, own sampling": ("trainer=ddp", "rollout.max_rows=16", *LORA),
    "LoRA, `ddp`, vLLM beside": ("trainer=ddp", *SERVED, *LORA),
    "LoRA, `fsdp2`, vLLM beside": ("trainer=fsdp2", *SERVED, *LORA),
    "all weights, `fsdp2`, own sampling": ("trainer=fsdp2", "rollout.max_rows=16", *ALL_WEIGHTS),
    "all weights, `fsdp2`, vLLM beside": ("trainer=fsdp2", *SERVED, *ALL_WEIGHTS),
}


def print_table(lines: Iterable[str], file: str, description: str) -> None:
    """Print the lines of a table; `--save` also writes them to that file of the results."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="write benchmarks/results")
    chosen = parser.parse_args()
    text = "".join(f"{line}\n" for line in lines)
    print(text, end="")
    if chosen.save:
        (RESULTS / file).write_text(text)


def lines() -> Iterator[str]:
    yield f"| | {' | '.join(WAYS)} |"
    yield "|---" * (len(WAYS) + 1) + "|"
    for preset in SHAPES:
        cells = [cell(preset, words) for words in WAYS.values()]
        yield f"| `{preset}` | {' | '.join(cells)} |"


def cell(preset: str, words: tuple[str, ...]) -> str:
    """`devices x GiB` for the smallest number of devices that hold the run."""
    for devices in DEVICES:
        held = memory_per_device(preset, words, devices)
        if held <= ROOM:
            return f"{devices} x {held:.0f}"
    return f"none of {DEVICES[-1]} ({held:.0f})"


def memory_per_device(preset: str, words: tuple[str, ...], devices: int) -> float:
    """GiB on each of `devices`."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(configuration(preset)))
        on = words if devices > 1 else tuple(w for w in words if not w.startswith("trainer="))
        cfg = compose([
            f"model={preset}", f"model.path={folder}", *WORK, *on, f"trainer.devices={devices}",
        ])  # fmt: skip
        return peak(parts_of_a_rank(cfg, check(cfg), devices)) / GIB


def configuration(preset: str) -> dict[str, object]:
    width, layers, heads, hidden, tied = SHAPES[preset]
    return SHARED | {
        "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "intermediate_size": hidden, "tie_word_embeddings": tied,
    }  # fmt: skip


if __name__ == "__main__":
    print_table(lines(), "largest.md", __doc__)
