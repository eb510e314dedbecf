"""The embedded language models: a real Qwen3 of 0.3 M parameters that reads characters, and one
that reads words of riddles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
CHARACTERS = "0123456789+=>abcdefghijklmnop*-() "
WORDS = (
    *("red", "green", "blue", "yellow", "circle", "square", "triangle"),
    *("the", "colour", "of", "blood", "a", "ripe", "tomato", "grass", "frog", "sea", "clear"),
    *("sky", "sun", "lemon", "without", "corners", "round", "as", "coin", "with", "four", "equal"),
    *("sides", "one", "field", "chess", "board", "three", "half", "diamond", ",", ":"),
)
MULTIPLE = 8  # vocabulary sizes are multiples of it
VOCABULARY = 40  # of the character tokenizer


def tiny_lm(
    *,
    seed: int,  # seed of the new weights
    hidden_size: int = 96,  # width of the residual stream
    num_layers: int = 3,  # number of transformer blocks
    num_heads: int = 4,  # heads of attention
    num_key_value_heads: int = 2,  # heads of keys and values, shared by several query heads
    head_dim: int = 24,  # width of a head
    intermediate_size: int = 256,  # width of the feed-forward layers
    max_positions: int = 64,  # longest prompt and answer together, in tokens
    reads: Literal["characters", "words"] = "characters",  # what a token is: a character, or a word
    tied: bool = True,
) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """A new model, its weights a function of the seed, and its tokenizer. `tied`: embeddings and
    head share weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = character_tokenizer() if reads == "characters" else word_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_key_value_heads,
        head_dim=head_dim,
        intermediate_size=intermediate_size,
        max_position_embeddings=max_positions,
        tie_word_embeddings=tied,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config), tokenizer


def character_tokenizer() -> PreTrainedTokenizerFast:
    """PAD = 0, EOS = 1, then one token per character."""
    from tokenizers import Regex, decoders, pre_tokenizers

    tokenizer = tokenizer_of(CHARACTERS)
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return tokenizer


def word_tokenizer() -> PreTrainedTokenizerFast:
    """PAD = 0, EOS = 1, then one token per word; spaces separate words."""
    from tokenizers import pre_tokenizers

    tokenizer = tokenizer_of(WORDS)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def tokenizer_of(known: Sequence[str]) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    symbols = [PAD, EOS, *known, UNKNOWN]
    symbols += [f"<unused{i}>" for i in range(-len(symbols) % MULTIPLE)]
    ids = {symbol: i for i, symbol in enumerate(symbols)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN)),
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        padding_side="left",
    )
