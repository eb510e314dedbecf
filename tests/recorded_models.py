"""Answers of small random models of several architectures, with a recorded step and without."""

from __future__ import annotations

import torch
from torch import nn
from torch.testing import assert_close
from transformers import AutoConfig, AutoModelForCausalLM

from tandem import rng
from tandem.policies.language.decoding import Local
from tandem.policies.language.records import Answers, Endings, Sampling
from tandem.policies.weights import FULL, Precision

SIZE = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1,
}  # fmt: skip
EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
RECORDED = {  # model type -> its own sizes
    "qwen3": {}, "qwen2": {}, "llama": {}, "mistral": {"sliding_window": None}, "olmo2": {},
    "phi3": {}, "smollm3": {},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "gpt_neox": {},
}  # fmt: skip
# A recorded step knows nothing of layers with a window, and experts may wait for their router.
PLAIN = {"gemma3_text": {"sliding_window": 8}, "qwen3_moe": EXPERTS}
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13], [14], [15, 16, 17, 18]]


def random_model(kind: str) -> nn.Module:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SIZE | (RECORDED | PLAIN)[kind])
    config.tie_word_embeddings = False
    model = AutoModelForCausalLM.from_config(config).eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            nn.init.normal_(weight, std=0.3)  # so that answers depend on what was read
    return model


def answers(
    model: nn.Module, device: str, prompts: list[list[int]], precision: Precision, *, record: bool
) -> Answers:
    """Eight answers to each prompt, of which some end early."""
    keys = rng.key(3, torch.arange(len(prompts))[:, None], torch.arange(8)).to(device)
    sampling = Sampling(max_new_tokens=40, cuda_graphs=record)
    endings = Endings(tokens=range(8), strings=(), decode=lambda rows: [""] * len(rows))
    engine = Local(model.to(device), precision)
    return engine.answer(prompts, keys, sampling=sampling, endings=endings)


def check_equal(kind: str, device: str, precision: Precision = FULL, *, atol: float = 2e-5) -> None:
    """A recorded step gives the tokens of a plain one, with a mask and without."""
    model = random_model(kind)
    for prompts in (PROMPTS, PROMPTS[1:2] * 4):
        want, got = (answers(model, device, prompts, precision, record=on) for on in (False, True))
        assert got.tokens.tolist() == want.tokens.tolist()
        assert got.length.tolist() == want.length.tolist()
        assert len(set(want.length.tolist())) > 3
        for name in ("logp", "entropy"):
            assert_close(getattr(got, name), getattr(want, name), atol=atol, rtol=0)
