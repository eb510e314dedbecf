"""Tiny random checkpoints of vision-language families in the hub's format, with processors."""

from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma4AudioFeatureExtractor,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4Processor,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLProcessor,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    SmolVLMProcessor,
)
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from tandem.hub import without_films

QWEN = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
GEMMA = {
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
    "image_token": "<image_soft_token>",
}
SMOL = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", "<video>")
TEMPLATE = (
    "{{% for message in messages %}}[{{{{ message.role }}}}]"
    "{{% for part in message.content %}}"
    "{{% if part.type == 'image' %}}{mark}{{% else %}}{{{{ part.text }}}}{{% endif %}}"
    "{{% endfor %}}\n{{% endfor %}}"
    "{{% if add_generation_prompt %}}[assistant]{{% endif %}}"
)
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": True,
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def byte_tokenizer(special, **named):
    """It encodes any text byte by byte, and the special tokens of a family."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    known = ["<pad>", "<eos>", *special, *named.values()]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: i for i, symbol in enumerate([*known, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    found = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        extra_special_tokens=named,
    )
    found.add_special_tokens({"additional_special_tokens": [*special]})
    return found


def of_qwen(tokenizer, patch):
    ids = tokenizer.convert_tokens_to_ids
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    pixels = Qwen2VLImageProcessorPil(
        patch_size=patch, merge_size=2, size={"shortest_edge": 16**2, "longest_edge": 64**2}
    )
    return dict(zip(names, map(ids, QWEN), strict=True)), pixels


def qwen2_5_vl():
    tokenizer = byte_tokenizer(QWEN)
    ids, pixels = of_qwen(tokenizer, 4)
    config = Qwen2_5_VLConfig(
        text_config={
            **TEXT,
            "vocab_size": len(tokenizer),
            "rope_parameters": {**ROPE, "mrope_section": [1, 1, 2]},
        },
        vision_config={
            "depth": 2,
            "hidden_size": 16,
            "num_heads": 2,
            "intermediate_size": 24,
            "patch_size": 4,
            "out_hidden_size": 32,
            "window_size": 16,
            "fullatt_block_indexes": [1],
        },
        **ids,
    )
    template = TEMPLATE.format(mark="<|vision_start|><|image_pad|><|vision_end|>")
    processor = without_films(Qwen2_5_VLProcessor)(pixels, tokenizer, chat_template=template)
    return Qwen2_5_VLForConditionalGeneration(config), processor


def qwen3_vl():
    tokenizer = byte_tokenizer(QWEN)
    ids, pixels = of_qwen(tokenizer, 4)
    rope = {**ROPE, "mrope_section": [1, 1, 2], "mrope_interleaved": True}
    config = Qwen3VLConfig(
        text_config={
            **TEXT,
            "head_dim": 8,
            "vocab_size": len(tokenizer),
            "rope_parameters": rope,
        },
        vision_config={
            "depth": 3,
            "hidden_size": 16,
            "num_heads": 2,
            "intermediate_size": 24,
            "patch_size": 4,
            "out_hidden_size": 32,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0, 1],
        },
        **ids,
        tie_word_embeddings=True,
    )
    template = TEMPLATE.format(mark="<|vision_start|><|image_pad|><|vision_end|>")
    processor = without_films(Qwen3VLProcessor)(pixels, tokenizer, chat_template=template)
    return Qwen3VLForConditionalGeneration(config), processor


def gemma3():
    tokenizer = byte_tokenizer((), **GEMMA)
    config = Gemma3Config(
        text_config={
            **TEXT,
            "head_dim": 8,
            "vocab_size": len(tokenizer),
            "sliding_window": 12,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 16,
            "patch_size": 4,
        },
        mm_tokens_per_image=4,
        image_token_index=tokenizer.image_token_id,
        boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id,
    )
    pixels = Gemma3ImageProcessorPil(size={"height": 16, "width": 16})
    template = TEMPLATE.format(mark=GEMMA["boi_token"])
    processor = Gemma3Processor(pixels, tokenizer, chat_template=template, image_seq_length=4)
    return Gemma3ForConditionalGeneration(config), processor


def smolvlm():
    rows = [f"<row_{r}_col_{c}>" for r in range(1, 5) for c in range(1, 5)]
    tokenizer = byte_tokenizer((*SMOL, *rows))
    config = SmolVLMConfig(
        text_config={**TEXT, "model_type": "llama", "vocab_size": len(tokenizer)},
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 16,
            "patch_size": 4,
        },
        scale_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        tie_word_embeddings=True,
        pad_token_id=0,
    )
    pixels = SmolVLMImageProcessorPil(
        size={"longest_edge": 32}, max_image_size={"longest_edge": 16}
    )
    template = TEMPLATE.format(mark="<image>")
    family = without_films(SmolVLMProcessor)
    processor = family(pixels, tokenizer, None, image_seq_len=4, chat_template=template)
    return SmolVLMForConditionalGeneration(config), processor


def mistral3():
    """Its processor gives sizes to the image processor, in patches merged by the projector."""
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
    from transformers.models.pixtral.processing_pixtral import PixtralProcessor

    tokenizer = byte_tokenizer(("[IMG]", "[IMG_BREAK]", "[IMG_END]"))
    config = Mistral3Config(
        text_config={
            **TEXT,
            "model_type": "mistral",
            "head_dim": 8,
            "vocab_size": len(tokenizer),
        },
        vision_config={
            "model_type": "pixtral",
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "head_dim": 8,
            "image_size": 64,
            "patch_size": 4,
        },
        image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"),
        spatial_merge_size=2,
        tie_word_embeddings=True,
    )
    pixels = PixtralImageProcessorPil(
        size={"longest_edge": 64}, patch_size={"height": 4, "width": 4}
    )
    processor = PixtralProcessor(
        pixels,
        tokenizer,
        patch_size=4,
        spatial_merge_size=2,
        chat_template=TEMPLATE.format(mark="[IMG]"),
    )
    return Mistral3ForConditionalGeneration(config), processor


def internvl():
    """It cuts an image into tiles."""
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    tokens = ("<img>", "</img>", "<IMG_CONTEXT>", "<video>")
    names = ("start_image_token", "end_image_token", "context_image_token", "video_token")
    tokenizer = byte_tokenizer((), **dict(zip(names, tokens, strict=True)))
    config = InternVLConfig(
        text_config={**TEXT, "model_type": "qwen2", "vocab_size": len(tokenizer)},
        vision_config={
            "model_type": "internvl_vision",
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": [32, 32],
            "patch_size": [8, 8],
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        downsample_ratio=0.5,
        tie_word_embeddings=True,
    )
    pixels = GotOcr2ImageProcessorPil(
        size={"height": 32, "width": 32}, crop_to_patches=True, max_patches=4
    )
    processor = without_films(InternVLProcessor)(
        pixels, tokenizer, image_seq_length=4, chat_template=TEMPLATE.format(mark="<IMG_CONTEXT>")
    )
    return InternVLForConditionalGeneration(config), processor


def gemma4():
    """Without sound, as its large sizes are."""
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    tokens = {"boi_token": "<boi>", "eoi_token": "<eoi>", "image_token": "<|image|>"}
    sounds = {"audio_token": "<|audio|>", "boa_token": "<boa>", "eoa_token": "<eoa>"}
    tokenizer = byte_tokenizer(("<|video|>",), **tokens, **sounds)
    config = Gemma4Config(
        text_config={
            **TEXT,
            "num_hidden_layers": 4,
            "head_dim": 8,
            "global_head_dim": 8,
            "vocab_size": len(tokenizer),
            "vocab_size_per_layer_input": len(tokenizer),
            "hidden_size_per_layer_input": 8,
            "sliding_window": 12,
            "num_kv_shared_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "patch_size": 4,
        },
        audio_config=None,
        image_token_id=tokenizer.image_token_id,
        boi_token_id=tokenizer.boi_token_id,
        eoi_token_id=tokenizer.eoi_token_id,
        video_token_id=tokenizer.convert_tokens_to_ids("<|video|>"),
        audio_token_id=tokenizer.audio_token_id,
    )
    processor = without_films(Gemma4Processor)(
        feature_extractor=Gemma4AudioFeatureExtractor(),
        image_processor=Gemma4ImageProcessorPil(patch_size=4, max_soft_tokens=70),
        tokenizer=tokenizer,
        video_processor=None,
        chat_template=TEMPLATE.format(mark="<|image|>"),
    )
    return Gemma4ForConditionalGeneration(config), processor


FAMILIES = {f.__name__: f for f in (qwen2_5_vl, qwen3_vl, gemma3, smolvlm, gemma4)}
BUILT = {f.__name__: f for f in (internvl, mistral3)}  # torchvision reads their folders
