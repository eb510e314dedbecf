"""The embedded masked-diffusion model: a real EuroBert of 0.3 M parameters for characters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tandem.policies.language.tiny_lm import VOCABULARY, character_tokenizer

if TYPE_CHECKING:
    from transformers import EuroBertForMaskedLM, PreTrainedTokenizerFast


def tiny_masked(
    *,
    seed: int,  # seed of the new weights
    hidden_size: int = 96,  # width of the residual stream
    num_layers: int = 3,  # number of transformer blocks
    num_heads: int = 4,  # heads of attention
    num_key_value_heads: int = 2,  # heads of keys and values, shared by several query heads
    head_dim: int = 24,  # width of a head
    intermediate_size: int = 256,  # width of the feed-forward layers
    max_positions: int = 64,  # longest prompt and answer together, in tokens
) -> tuple[EuroBertForMaskedLM, PreTrainedTokenizerFast]:
    """A new model, its weights a function of the seed, and its tokenizer."""
    from transformers import EuroBertConfig, EuroBertForMaskedLM

    tokenizer = character_tokenizer()
    tokenizer.mask_token = tokenizer.convert_ids_to_tokens(VOCABULARY - 1)
    config = EuroBertConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_key_value_heads,
        head_dim=head_dim,
        intermediate_size=intermediate_size,
        max_position_embeddings=max_positions,
        tie_word_embeddings=True,
        mask_token_id=tokenizer.mask_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return EuroBertForMaskedLM(config), tokenizer
