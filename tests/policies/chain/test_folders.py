"""A chain of two folders: a chat model that rewrites prompts for Stable Diffusion, both tiny."""

import json

import pytest
import torch
from policies.flow.tiny_sd3 import write_pipeline
from policies.small_language import chat_model
from safetensors.torch import load_file

import tandem

SMALL = (
    "iterations=2", "prompts_per_step=2", "group_size=2", "micro_batch_size=2",
    "max_tokens_per_microbatch=null", "evaluation.every=2", "evaluation.samples=1",
    "evaluation.steps=2", "rollout.text.max_new_tokens=6", "rollout.text.max_prompt_tokens=100",
    "rollout.picture.steps=4", "model.picture.adapter.resolution=16", "trainer=cpu",
    "model.picture.adapter.max_sequence_length=16", "model.picture.latent_size=256",
    "model.picture.dtype=float32", "model.instruction='Say more.'", "plugins=[coin]", "reward=coin",
    "algorithm.segments.text.lr=1e-2", "algorithm.segments.picture.lr=1e-2",
)  # fmt: skip


@pytest.mark.slow
def test_two_checkpoints_are_loaded_trained_saved_and_loaded_back(tmp_path):
    model, tokenizer = chat_model()
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "writer")
    write_pipeline(tmp_path / "painter")
    (tmp_path / "prompts.txt").write_text("\n".join(f"a {one} thing" for one in "abcdefgh"))
    command = [
        "model=qwen3_writes_sd3_5", f"data.path={tmp_path / 'prompts.txt'}",
        f"model.text.path={tmp_path / 'writer'}", f"model.picture.path={tmp_path / 'painter'}",
        f"cache_dir={tmp_path / 'cache'}", *SMALL,
    ]  # fmt: skip
    first = tandem.train(*command, f"run_dir={tmp_path / 'first'}")
    assert {"actor/text/ratio_mean", "actor/picture/ratio_mean"} <= first.metrics.keys()
    made = tmp_path / "first" / "model"
    moved = load_file(made / "text" / "model.safetensors")
    before = load_file(tmp_path / "writer" / "model.safetensors")
    assert any(not torch.equal(moved[name], before[name]) for name in before)
    assert json.loads((made / "picture" / "transformer" / "config.json").read_text())
    rows = (tmp_path / "first" / "samples").glob("*.jsonl")
    shown = [json.loads(line) for table in rows for line in table.read_text().splitlines()]
    assert all("written" in row and "Say more." in row["prompt"] for row in shown)
    again = tandem.train(
        *command, f"continue_from={tmp_path / 'first'}", f"run_dir={tmp_path / 'again'}",
        "algorithm.segments.text.weight=0",
    )  # fmt: skip
    after = load_file(tmp_path / "again" / "model" / "text" / "model.safetensors")
    assert all(torch.equal(after[name], moved[name]) for name in moved)
    assert "actor/text/ratio_mean" not in again.metrics
