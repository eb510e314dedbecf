"""Whole runs on a quantized base: of texts and images, on tiny hub checkpoints."""

import json

import pytest
import torch
from hub_language_models import write_llama3, write_qwen3, write_rows
from loaded import load_configured
from policies.flow.tiny_families import FAMILIES
from safetensors.torch import load_file

import tandem
from tandem.config import compose
from tandem.policies.lora import is_adapted
from tandem.policies.quantization import QuantizedLinear
from tandem.training.callbacks import newest_policy

PACKAGES = {"bnb_4bit": "bitsandbytes", "bnb_8bit": "bitsandbytes", "torchao_8bit": "torchao"}
RUN = (
    "iterations=3", "prompts_per_step=4", "group_size=4", "evaluation.every=null",
    "checkpoints.every=1", "trainer=cpu", "threads=1", "optimizer.lr=1e-2", "plugins=[coin]",
    "reward=coin",
)  # fmt: skip
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*:FutureWarning")]


@pytest.fixture(params=PACKAGES)
def how(request):
    pytest.importorskip(PACKAGES[request.param])
    return f"model/quantization={request.param}"


def of_texts(place, name):
    write = {"qwen3_8b": write_qwen3, "llama3_8b": write_llama3}[name]
    return (
        f"model={name}", "algorithm=grpo", f"model.path={write(place / name)}", "data=jsonl",
        f"data.path={write_rows(place / 'rows.jsonl')}", "data.held_out=0.2",
        "algorithm.kl.coef=0.01", "rollout.max_new_tokens=6", *RUN,
    )  # fmt: skip


def of_pictures(place):
    family = FAMILIES["sd3_5_medium"]
    family.write(place / "sd3")
    (place / "prompts.txt").write_text("".join(f"a {x}\n" for x in "abcdefgh"))
    return (
        "model=sd3_5_medium", "algorithm=flow_grpo", f"model.path={place / 'sd3'}",
        f"data.path={place / 'prompts.txt'}", "model.dtype=float32", "rollout.steps=4",
        "model.adapter.resolution=32", "model.adapter.encoder_dtype=float32",
        f"model.adapter.max_sequence_length={family.tokens}", f"cache_dir={place / 'cache'}",
        *RUN,
    )  # fmt: skip


WORDS = {
    "qwen3": lambda place: of_texts(place, "qwen3_8b"),
    "llama3": lambda place: of_texts(place, "llama3_8b"),
    "sd3": of_pictures,
}


def weights_of(folder):
    return newest_policy(folder)[0]


def numbers_of(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "optim/grad_norm" in row]


@pytest.mark.parametrize("kind", WORDS)
def test_a_run_trains_adapters_alone_and_goes_on_bit_for_bit(tmp_path, kind, how):
    words = (*WORDS[kind](tmp_path), how)
    tandem.train(*words, f"run_dir={tmp_path / 'whole'}")
    tandem.train(*words, "iterations=2", f"run_dir={tmp_path / 'cut'}")
    tandem.train(f"resume={tmp_path / 'cut'}", "iterations=3")
    whole, cut = weights_of(tmp_path / "whole"), weights_of(tmp_path / "cut")
    assert whole and all(".lora_" in name for name in whole)
    assert all(torch.equal(x, cut[name]) for name, x in whole.items())
    assert any(x.abs().max() > 0 for name, x in whole.items() if ".lora_B" in name)
    rows = numbers_of(tmp_path / "whole")
    assert rows == numbers_of(tmp_path / "cut") and len(rows) == 3
    assert all(row["optim/grad_norm"] > 0 for row in rows)


@pytest.mark.parametrize("kind", ["qwen3", "llama3"])
def test_plain_peft_reads_the_adapter_of_a_run(tmp_path, kind, how):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    words = (*WORDS[kind](tmp_path), how)
    result = tandem.train(*words, f"run_dir={tmp_path / 'run'}")
    ours = load_configured(compose(words))
    ours.load_weights(weights_of(result.run_dir))
    base = AutoModelForCausalLM.from_pretrained(ours.path, dtype=torch.bfloat16)
    base.load_state_dict({**base.state_dict(), **round_weights(ours.network)}, strict=False)
    beside = PeftModel.from_pretrained(base, result.run_dir / "model" / "lora")
    tokens = torch.arange(16)[None]
    got, want = (x(input_ids=tokens).logits.float() for x in (beside, ours.network))
    assert (got - want).abs().max() < 0.02
    merged = AutoModelForCausalLM.from_pretrained(result.run_dir / "model")
    assert (merged(input_ids=tokens).logits.float() - want).abs().max() < 0.1


def round_weights(network):
    """The values of the packed weights, by the names of the plain model."""
    base = network.get_base_model()
    layers = {n: x for n, x in base.named_modules() if isinstance(x, QuantizedLinear)}
    return {f"{n.removesuffix('.base_layer')}.weight": x.weight for n, x in layers.items()}


def test_plain_diffusers_reads_the_adapter_of_a_run(tmp_path, how):
    from diffusers import SD3Transformer2DModel

    words = (*of_pictures(tmp_path), how)
    result = tandem.train(*words, f"run_dir={tmp_path / 'run'}")
    folder = result.run_dir / "model"
    plain = SD3Transformer2DModel.from_pretrained(tmp_path / "sd3", subfolder="transformer")
    plain.load_lora_adapter(folder / "lora", weight_name="pytorch_lora_weights.safetensors")
    assert any(is_adapted(layer) for layer in plain.modules())
    merged = SD3Transformer2DModel.from_pretrained(folder, subfolder="transformer")
    assert (
        merged.state_dict().keys()
        == load_file(
            tmp_path / "sd3" / "transformer" / "diffusion_pytorch_model.safetensors"
        ).keys()
    )
