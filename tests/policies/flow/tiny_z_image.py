"""A Z-Image pipeline of random weights."""

from policies.flow.tiny_sd3 import vae
from policies.flow.tiny_text import letters, qwen3


def pipeline(*, shift=6.0):
    from diffusers import (
        FlowMatchEulerDiscreteScheduler,
        ZImagePipeline,
        ZImageTransformer2DModel,
    )
    from transformers import Qwen3Model

    return ZImagePipeline(
        transformer=ZImageTransformer2DModel(
            in_channels=16,
            dim=32,
            n_layers=1,
            n_refiner_layers=1,
            n_heads=2,
            n_kv_heads=2,
            cap_feat_dim=16,
            axes_dims=[4, 6, 6],
            axes_lens=[256, 32, 32],
        ),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=shift),
        vae=vae(16, (8,) * 4, shift=0.1159, scale=0.3611),
        text_encoder=qwen3(Qwen3Model),
        tokenizer=letters(),
    )
