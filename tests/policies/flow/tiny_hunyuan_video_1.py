"""A pipeline of the first HunyuanVideo with random weights."""

from policies.flow.tiny_qwen_image import qwen_tokenizer
from policies.flow.tiny_sd3 import clip, clip_tokenizer

TOKENS = 40


def pipeline():
    from diffusers import (
        AutoencoderKLHunyuanVideo,
        FlowMatchEulerDiscreteScheduler,
        HunyuanVideoPipeline,
        HunyuanVideoTransformer3DModel,
    )
    from diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video import DEFAULT_PROMPT_TEMPLATE
    from transformers import CLIPTextModel

    # The pipeline drops the first 95 tokens, those of its template.
    tokenizer = qwen_tokenizer(DEFAULT_PROMPT_TEMPLATE["template"])
    return HunyuanVideoPipeline(
        transformer=HunyuanVideoTransformer3DModel(
            in_channels=8,
            out_channels=8,
            num_attention_heads=2,
            attention_head_dim=12,
            num_layers=1,
            num_single_layers=1,
            num_refiner_layers=1,
            mlp_ratio=1.0,
            text_embed_dim=16,
            pooled_projection_dim=16,
            rope_axes_dim=(4, 4, 4),
        ),
        vae=AutoencoderKLHunyuanVideo(
            latent_channels=8,
            block_out_channels=(8,) * 4,
            layers_per_block=1,
            norm_num_groups=4,
        ),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=7.0),
        text_encoder=llama(len(tokenizer)),
        tokenizer=tokenizer,
        text_encoder_2=clip(CLIPTextModel),
        tokenizer_2=clip_tokenizer(),
    )


def llama(words):
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=words,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    return LlamaModel(config).eval()
