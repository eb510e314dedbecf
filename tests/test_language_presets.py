"""Each language preset on a tiny checkpoint in the hub's format: sampled, trained, read by peft."""

from itertools import product
from pathlib import Path

import pytest
import torch
from gate import each
from hub_language_models import write_llama3, write_qwen3, write_rows
from loaded import load_configured
from omegaconf import OmegaConf

import tandem
from tandem.config import compose
from tandem.training.callbacks import newest_policy
from tandem.types import Prompt

TRAINED = product(["grpo", "dpo"], ["qwen3_8b", "qwen3_0_6b", "llama3_8b"])
CONF = Path(__file__).parents[1] / "conf" / "model"
ADAPTED = ("llama3_8b", "qwen3_14b", "qwen3_32b", "qwen3_4b", "qwen3_8b")
RUN = (
    "data=jsonl", "data.held_out=0.2", "reward=target_length",
    "reward.target_length.function.target=4", "iterations=2", "trainer=cpu",
    "threads=1", "prompts_per_step=4", "rollout.max_new_tokens=6", "optimizer.lr=1e-2",
    "evaluation.every=null", "checkpoints.every=1000",
)  # fmt: skip
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:FutureWarning"),
]


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    place = tmp_path_factory.mktemp("hub")
    folders = {"qwen3": write_qwen3(place / "qwen3"), "llama3": write_llama3(place / "llama3")}
    return folders, write_rows(place / "rows.jsonl")


def words_of(preset, algorithm, hub):
    folders, rows = hub
    path = folders[preset.partition("_")[0]]
    own = () if preset in ADAPTED else ("model.lora={r: 4, alpha: 8}",)
    groups = ("group_size=4",) if algorithm == "grpo" else ()
    words = (f"model={preset}", f"algorithm={algorithm}", f"model.path={path}", f"data.path={rows}")
    return [*words, *RUN, *own, *groups]


@pytest.mark.parametrize(("algorithm", "preset"), each(2, TRAINED))
def test_a_preset_trains_and_plain_peft_reads_what_it_saved(preset, algorithm, hub, tmp_path):
    words = words_of(preset, algorithm, hub)
    result = tandem.train(*words, f"run_dir={tmp_path}/run")
    run_dir = result.run_dir
    trained = policy_of(words)
    start = {name: weight.clone() for name, weight in trained.weights().items()}
    trained.load_weights(newest_policy(run_dir)[0])
    tokens = torch.tensor(trained.chat.encode(prompts_of()))
    with torch.no_grad():
        want = trained.network(input_ids=tokens).logits.float()
        got = read_by_peft(words, run_dir)(input_ids=tokens).logits.float()
        with trained.network.disable_adapter():
            base = trained.network(input_ids=tokens).logits.float()
    assert (got - want).abs().max() <= 1e-5
    assert (want - base).abs().max() > 1e-3
    changed = [name for name, w in trained.weights().items() if not torch.equal(w, start[name])]
    assert len(changed) > len(start) / 2
    assert result.metrics["optim/updates"] == 1 and result.metrics["optim/grad_norm"] > 0


def policy_of(words):
    return load_configured(compose(words))


def prompts_of():
    messages = ({"role": "user", "content": "say 3"},)
    return [Prompt(id=0, source="rows", messages=messages)]


def read_by_peft(words, run_dir):
    """The base from its folder and the adapter from the run's, without Tandem's code."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = compose(words).model
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[model.dtype]
    base = AutoModelForCausalLM.from_pretrained(model.path, dtype=dtype)
    return PeftModel.from_pretrained(base, str(run_dir / "model" / "lora")).eval()


def test_a_prompt_goes_through_the_familys_own_template(hub):
    says = {
        "qwen3_8b": "<|im_start|>user\nsay 3<|im_end|>\n<|im_start|>assistant\n"
        "<think>\n\n</think>\n\n",
        "llama3_8b": "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nsay 3<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    }
    for preset, text in says.items():
        policy = policy_of(words_of(preset, "grpo", hub))
        (prompt,) = prompts_of()
        assert policy.describe_prompt(prompt) == text
        tokenizer = policy.chat.tokenizer
        assert tokenizer.decode(policy.chat.encode([prompt])[0]) == text
        ends = {tokenizer.convert_ids_to_tokens(end) for end in policy.ends}
        assert {"<|im_end|>", "<|endoftext|>"} <= ends or {"<|eot_id|>", "<|end_of_text|>"} <= ends


def test_sizes_of_a_family_differ_in_name_and_in_what_memory_asks():
    """From 4B on: adapters on every linear layer, over bfloat16 weights."""
    for path in CONF.glob("qwen3_*.yaml"):
        whole = OmegaConf.load(path)
        model = whole.model
        if "text" in model:  # a chain, of which it is a part
            continue
        large = path.stem in ADAPTED
        assert model.path.startswith("Qwen/Qwen3-") and model.enable_thinking is False
        assert (model.get("dtype") == "bfloat16") == large == ("lora" in model)
        if large:
            assert whole.trainer.float32_matmul_precision == "high"  # of float32 adapters
            assert model.lora.target_modules == "all-linear" and model.gradient_checkpointing
