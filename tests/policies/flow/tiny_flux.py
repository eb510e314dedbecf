"""A FLUX.1 pipeline of a few thousand random weights, written to a folder."""

import torch
from policies.flow.tiny_sd3 import clip, clip_tokenizer, t5, t5_tokenizer, vae


def write_flux(folder, seed=0, **options):
    """Write the folder by `save_pretrained`."""
    torch.manual_seed(seed)
    pipeline(**options).save_pretrained(folder)
    return folder


def pipeline(*, guidance_embeds=True):
    from diffusers import FluxPipeline

    return FluxPipeline(**parts(guidance_embeds=guidance_embeds))


def kontext():
    from diffusers import FluxKontextPipeline

    return FluxKontextPipeline(**parts(guidance_embeds=True))


def parts(*, guidance_embeds):
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel
    from transformers import CLIPTextModel

    return {
        "transformer": FluxTransformer2DModel(
            in_channels=64,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=32,
            pooled_projection_dim=16,
            guidance_embeds=guidance_embeds,
            axes_dims_rope=(4, 6, 6),
        ),
        "scheduler": FlowMatchEulerDiscreteScheduler(
            shift=3.0,
            use_dynamic_shifting=True,
            base_shift=0.5,
            max_shift=1.15,
            base_image_seq_len=256,
            max_image_seq_len=4096,
        ),
        "vae": vae(16, (8,) * 4, shift=0.1159, scale=0.3611),
        "text_encoder": clip(CLIPTextModel),
        "tokenizer": clip_tokenizer(),
        "text_encoder_2": t5(),
        "tokenizer_2": t5_tokenizer(),
    }
