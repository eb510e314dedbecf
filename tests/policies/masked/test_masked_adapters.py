"""Masked language models, which cannot generate: their adapters, ends and memory."""

import json

import pytest
import torch
from policies.masked.checkpoints import write_modern_bert
from policies.masked.small_masked import make_rollout, sampling, small_masked
from policies.small_language import questions
from torch.testing import assert_close

from tandem.config import check, compose
from tandem.launch.memory_estimate import parts_of_a_rank
from tandem.policies.lora import Lora
from tandem.policies.masked.policy import MaskedPolicy
from tandem.policies.request import Request

LORA = Lora(r=4, alpha=8)
REFERENCE = frozenset({"ref_logp"})


@pytest.fixture
def adapted():
    """A policy with adapters that differ from new ones."""
    policy = small_masked(needs=REFERENCE, lora=LORA)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in policy.trainable().values():
            weight.add_(torch.randn(weight.shape, generator=noise), alpha=0.2)
    return policy


def test_adapters_are_trained_on_a_base_that_is_the_reference(adapted):
    assert adapted.weights() and all(".lora_" in name for name in adapted.weights())
    rollout = make_rollout(adapted)
    assert_close(adapted.logp(rollout), rollout.behaviour_logp, atol=1e-5, rtol=0)
    base = small_masked().logp(rollout)
    assert_close(adapted.complete(rollout, REFERENCE).ref_logp, base, atol=1e-6, rtol=0)
    assert (adapted.logp(rollout) - base).abs().max() > 0.1
    assert adapted.reference is None


def test_what_is_saved_is_merged_and_the_adapter_lies_beside_it(adapted, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForMaskedLM

    rollout = make_rollout(adapted)
    adapted.save(tmp_path / "own")
    merged = MaskedPolicy(path=str(tmp_path / "own"))
    merged.load(Request(sampling=sampling()))
    assert_close(merged.logp(rollout), adapted.logp(rollout), atol=2e-5, rtol=0)

    small_masked().save(tmp_path / "base")
    base = AutoModelForMaskedLM.from_pretrained(tmp_path / "base")
    beside = PeftModel.from_pretrained(base, tmp_path / "own" / "lora").get_base_model()
    tokens = rollout.sample.tokens
    logits = beside(input_ids=tokens).logits
    assert_close(logits, adapted.network(input_ids=tokens).logits, atol=2e-5, rtol=0)
    said = json.loads((tmp_path / "own" / "lora" / "adapter_config.json").read_text())
    assert said["task_type"] is None


def test_a_model_without_an_end_token_is_trained_on_samples_and_on_no_demonstrations(tmp_path):
    policy = MaskedPolicy(path=str(write_modern_bert(tmp_path / "endless", end=None)))
    policy.load(Request(sampling=sampling()))
    assert make_rollout(policy).truncated.all()
    with pytest.raises(ValueError, match=r"set eos_token in tokenizer_config\.json") as caught:
        policy.admit_answered(questions(("dbca",)))
    assert "\n" not in str(caught.value)


def test_an_estimate_counts_the_logits_of_all_positions_where_the_head_has_several_layers(tmp_path):
    rows, positions, vocabulary = 4, 24, 4096
    folder = write_modern_bert(tmp_path / "model", vocabulary=vocabulary)
    cfg = compose([
        "model=llada_8b", f"model.path={folder}", "data=sort_letters", "reward=exact_match",
        "trainer=cpu", "rollout.max_prompt_tokens=8", "rollout.max_new_tokens=16",
        "rollout.steps=4", "rollout.block_length=null", f"rollout.max_rows={rows}",
        "model.dtype=float32",
    ])  # fmt: skip
    parts = {part.name: part for part in parts_of_a_rank(cfg, check(cfg), ranks=1)}
    logits = rows * positions * vocabulary * 4  # bytes
    assert logits < parts["pass"].size < 2 * logits
    assert parts["adapters"].size > 0
