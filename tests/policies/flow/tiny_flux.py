"""A FLUX.1 pipeline of a few thousand random weights, written to a folder."""

import torch
from policies.flow.tiny_sd3 import clip_tokenizer, t5, t5_tokenizer


def write_flux(folder, seed=0, **options):
    """As `save_pretrained` leaves it."""
    torch.manual_seed(seed)
    pipeline(**options).save_pretrained(folder)
    return folder


def pipeline(*, guidance_embeds=True):
    from diffusers import (
        AutoencoderKL,
        FlowMatchEulerDiscreteScheduler,
        FluxPipeline,
        FluxTransformer2DModel,
    )

    return FluxPipeline(
        transformer=FluxTransformer2DModel(
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
        scheduler=FlowMatchEulerDiscreteScheduler(
            shift=3.0,
            use_dynamic_shifting=True,
            base_shift=0.5,
            max_shift=1.15,
            base_image_seq_len=256,
            max_image_seq_len=4096,
        ),
        vae=AutoencoderKL(
            in_channels=3,
            out_channels=3,
            latent_channels=16,
            block_out_channels=(8,) * 4,
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            layers_per_block=1,
            norm_num_groups=4,
            use_quant_conv=False,
            use_post_quant_conv=False,
            shift_factor=0.1159,
            scaling_factor=0.3611,
        ),
        text_encoder=clip(),
        tokenizer=clip_tokenizer(),
        text_encoder_2=t5(),
        tokenizer_2=t5_tokenizer(),
    )


def clip():
    from transformers import CLIPTextConfig, CLIPTextModel

    tokenizer = clip_tokenizer()
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=32,
            num_attention_heads=2,
            num_hidden_layers=2,
            max_position_embeddings=77,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    ).eval()
