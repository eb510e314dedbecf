"""The embedded language model: a real Qwen3 of 0.3 M parameters that reads single characters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
CHARACTERS = "0123456789+=>abcdefghijklmnop*-() "
VOCABULARY = 40  # the next multiple of 8


def tiny_lm(
    *,
    seed: int,
    hidden_size: int = 96,
    num_layers: int = 3,
    num_heads: int = 4,
    num_key_value_heads: int = 2,
    head_dim: int = 24,
    intermediate_size: int = 256,
    max_positions: int = 64,
) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """A new model, its weights a function of the seed, and its tokenizer."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = character_tokenizer()
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_key_value_heads,
        head_dim=head_dim,
        intermediate_size=intermediate_size,
        max_position_embeddings=max_positions,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config), tokenizer


def character_tokenizer() -> PreTrainedTokenizerFast:
    """PAD = 0, EOS = 1, then one token per character."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    symbols = [PAD, EOS, *CHARACTERS, UNKNOWN]
    symbols += [f"<unused{i}>" for i in range(VOCABULARY - len(symbols))]
    ids = {symbol: i for i, symbol in enumerate(symbols)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        padding_side="left",
    )
