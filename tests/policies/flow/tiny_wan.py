"""Wan pipelines of random weights: 2.1, and the small one of 2.2, whose times are of tokens."""

from policies.flow.tiny_text import letters, umt5


def pipeline(*, expand_timesteps=False, **options):
    from diffusers import (
        AutoencoderKLWan,
        FlowMatchEulerDiscreteScheduler,
        WanPipeline,
        WanTransformer3DModel,
    )

    return WanPipeline(
        transformer=WanTransformer3DModel(
            num_attention_heads=2,
            attention_head_dim=12,
            in_channels=16,
            out_channels=16,
            text_dim=32,
            freq_dim=16,
            ffn_dim=32,
            num_layers=2,
            rope_max_seq_len=32,
        ),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=AutoencoderKLWan(
            base_dim=4, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, **options
        ),
        text_encoder=umt5(),
        tokenizer=letters(),
        expand_timesteps=expand_timesteps,
    )
