"""The embedded vision-language model: a real Qwen3-VL of 0.46 M parameters, built from the seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tandem.hub import without_films
from tandem.policies.language.tiny_lm import tokenizer_of

if TYPE_CHECKING:
    from transformers import ProcessorMixin, Qwen3VLForConditionalGeneration

SEEN, FILMED, BEGIN, END = "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"
WORDS = (
    *("red", "green", "blue", "yellow", "circle", "square", "triangle"),
    *("colour", "shape", "what", "how", "many", "?", "0", "1", "2", "3", "4"),
)
PATCH, MERGED = 4, 2  # pixels along a patch, and patches along a token


def tiny_vlm(
    *,
    seed: int,  # seed of the new weights
    hidden_size: int = 96,  # width of the language layers
    num_layers: int = 3,  # blocks of the language model
    tower_size: int = 48,  # width of the vision tower
    tower_layers: int = 2,  # blocks of the vision tower
    max_positions: int = 64,  # longest prompt and answer together, in tokens
) -> tuple[Qwen3VLForConditionalGeneration, ProcessorMixin]:
    """A new model, its weights a function of the seed, and its processor: an image of 16 x 16
    pixels is 4 tokens.

    Initial weights are scaled for its small width: with a large model's initialisation, it learns
    to use images only after hundreds of updates.
    """
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    processor = word_processor()
    ids = processor.tokenizer.convert_tokens_to_ids
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": len(processor.tokenizer),
            "hidden_size": hidden_size,
            "num_hidden_layers": num_layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 24,
            "intermediate_size": 256,
            "max_position_embeddings": max_positions,
            "initializer_range": 0.06,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [4, 4, 4],
                "mrope_interleaved": True,
            },
            "pad_token_id": processor.tokenizer.pad_token_id,
            "eos_token_id": processor.tokenizer.eos_token_id,
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": tower_layers,
            "hidden_size": tower_size,
            "num_heads": 4,
            "intermediate_size": 2 * tower_size,
            "patch_size": PATCH,
            "spatial_merge_size": MERGED,
            "temporal_patch_size": 1,
            "out_hidden_size": hidden_size,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
            "initializer_range": 0.1,
        },
        image_token_id=ids(SEEN),
        video_token_id=ids(FILMED),
        vision_start_token_id=ids(BEGIN),
        vision_end_token_id=ids(END),
        tie_word_embeddings=True,
        eos_token_id=processor.tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3VLForConditionalGeneration(config), processor


def word_processor() -> ProcessorMixin:
    """Images at their own size in patches of 4 x 4 pixels, and one token per word."""
    from tokenizers import pre_tokenizers
    from transformers import Qwen3VLProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokenizer = tokenizer_of((SEEN, FILMED, BEGIN, END, *WORDS))
    tokenizer.add_special_tokens({"additional_special_tokens": [SEEN, FILMED, BEGIN, END]})
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pixels = Qwen2VLImageProcessorPil(
        patch_size=PATCH,
        merge_size=MERGED,
        temporal_patch_size=1,
        size={"shortest_edge": (PATCH * MERGED) ** 2, "longest_edge": 64**2},
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    return without_films(Qwen3VLProcessor)(image_processor=pixels, tokenizer=tokenizer)
