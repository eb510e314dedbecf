"""A language model built by a function: `model=tiny_llama`."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tandem import register_model
from tandem.policies.language.tiny_lm import VOCABULARY, character_tokenizer


@register_model
def tiny_llama(
    *, seed: int, hidden_size: int = 32, layers: int = 1
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """A new Llama that reads single characters, with weights from the seed."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config), character_tokenizer()
