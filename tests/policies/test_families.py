"""Architectures with more features than a Qwen3, or other ones."""

import pytest
import torch
from small_language import questions, small, train_briefly
from torch.testing import assert_close

from tandem.policies.language.chunked_head import logits_are_head_of_trunk
from tandem.policies.language.tiny_lm import character_tokenizer

ENTROPY = frozenset({"entropy"})
RECURRENT = {
    "layer_types": ["linear_attention", "full_attention"],
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}


def families():
    import transformers as hf

    size = {
        "vocab_size": 40,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    return {
        "llama": hf.LlamaConfig(**size),
        "gemma2": hf.Gemma2Config(**size, sliding_window=6, final_logit_softcapping=0.5),
        "cohere": hf.CohereConfig(**size, logit_scale=0.3),
        "granite": hf.GraniteConfig(**size, logits_scaling=3.0),
        "gpt2": hf.GPT2Config(vocab_size=40, n_positions=64, n_embd=48, n_layer=2),
        "mixture of experts": hf.MixtralConfig(**size, num_local_experts=4),
        "recurrent layers": hf.Qwen3NextConfig(**size, **RECURRENT),
        "convolutions": hf.Lfm2Config(
            **{k: x for k, x in size.items() if k != "head_dim"},
            layer_types=["conv", "full_attention"],
        ),
    }


PLAIN = ["llama", "gpt2", "mixture of experts", "recurrent layers"]
FAMILIES = [*PLAIN, "gemma2", "cohere", "granite"]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_family_does_to_its_logits_is_done(family):
    """Caps and scales, learned positions, windows and dropout: sampler, trainer and model agree."""
    from transformers import AutoModelForCausalLM

    config = families()[family]

    def build():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config), character_tokenizer()

    policy = train_briefly(small(build=build), steps=3)
    assert logits_are_head_of_trunk(policy.network) == (family in PLAIN)
    rollout = policy.sample(questions(), 2, key=1, slots=range(8))
    evidence = policy.evidence(rollout, ENTROPY)
    assert_close(evidence.logp, rollout.behaviour_logp, atol=5e-6, rtol=0)
    assert_close(evidence.entropy, rollout.entropy, atol=5e-6, rtol=0)
