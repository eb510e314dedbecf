"""A Qwen-Image pipeline of a few thousand random weights, written to a folder."""

import json

import torch

from tandem.hub import without_films

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|image_pad|>", "<|video_pad|>"]
SPECIAL += ["<|vision_start|>", "<|vision_end|>"]


def write_qwen_image(folder, seed=0):
    """Write the folder by `save_pretrained`."""
    torch.manual_seed(seed)
    pipeline().save_pretrained(folder)
    return folder


def pipeline():
    from diffusers import QwenImagePipeline

    return QwenImagePipeline(**parts())


def edit():
    """Qwen-Image-Edit with a processor without its video part."""
    from diffusers import QwenImageEditPlusPipeline
    from transformers import Qwen2VLProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    own, kind = parts(), without_films(Qwen2VLProcessor)
    kind.__module__ = Qwen2VLProcessor.__module__  # the folder's index names it
    processor = kind(
        Qwen2VLImageProcessorPil(size={"shortest_edge": 28**2, "longest_edge": 56**2}),
        own["tokenizer"],
        chat_template="",
    )
    return QwenImageEditPlusPipeline(processor=processor, **own)


def parts():
    from diffusers import (
        AutoencoderKLQwenImage,
        FlowMatchEulerDiscreteScheduler,
        QwenImageTransformer2DModel,
    )

    tokenizer = qwen_tokenizer()
    return {
        "transformer": QwenImageTransformer2DModel(
            in_channels=64,
            out_channels=16,
            num_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=32,
            axes_dims_rope=(4, 6, 6),
        ),
        "scheduler": FlowMatchEulerDiscreteScheduler(
            shift=1.0,
            use_dynamic_shifting=True,
            base_shift=0.5,
            max_shift=0.9,
            base_image_seq_len=256,
            max_image_seq_len=8192,
            shift_terminal=0.02,
        ),
        "vae": AutoencoderKLQwenImage(
            base_dim=8, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, attn_scales=[]
        ),
        "text_encoder": qwen2_5_vl(tokenizer),
        "tokenizer": tokenizer,
    }


def qwen2_5_vl(tokenizer):
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("im_end", "endoftext")}
    return Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(
            text_config={
                "vocab_size": len(tokenizer),
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]},
                "eos_token_id": ids["im_end"],
                "pad_token_id": ids["endoftext"],
                "bos_token_id": None,
            },
            vision_config={
                "depth": 1,
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_heads": 2,
                "out_hidden_size": 32,
                "fullatt_block_indexes": [0],
            },
            image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
            video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
            vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
            vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
        )
    ).eval()


WORDS = (
    "system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, "
    "spatial relationships of the objects and background:\nuser\nassistant\n"
)


def qwen_tokenizer(words=WORDS, **options):
    """Letters and the words of a pipeline's template, whose first tokens the pipeline drops."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    empty = Qwen2Tokenizer(vocab={x: i for i, x in enumerate(letters)}, merges=[])
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = empty.backend_tokenizer.pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=9999, initial_alphabet=letters, show_progress=False)
    learner.train_from_iterator([words], trainer)
    learned = json.loads(learner.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=learned["vocab"], merges=list(map(tuple, learned["merges"])), **options
    )
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    tokenizer.pad_token = "<|endoftext|>"
    return tokenizer
