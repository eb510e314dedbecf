"""FLUX.2 pipelines of random weights: klein and dev."""

import torch
from policies.flow.tiny_text import letters, mistral3, qwen3


def parts(*, guidance_embeds):
    from diffusers import (
        AutoencoderKLFlux2,
        FlowMatchEulerDiscreteScheduler,
        Flux2Transformer2DModel,
    )

    vae = AutoencoderKLFlux2(
        latent_channels=4,
        block_out_channels=(8,) * 4,
        layers_per_block=1,
        norm_num_groups=4,
        mid_block_add_attention=False,
    )
    vae.bn.running_mean.copy_(torch.linspace(-0.5, 0.5, 16))
    vae.bn.running_var.copy_(torch.linspace(0.5, 2.0, 16))
    return {
        "transformer": Flux2Transformer2DModel(
            in_channels=16,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=48,
            timestep_guidance_channels=16,
            axes_dims_rope=(4, 4, 4, 4),
            guidance_embeds=guidance_embeds,
        ),
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
        "vae": vae,
    }


def klein():
    from diffusers import Flux2KleinPipeline
    from transformers import Qwen3ForCausalLM

    return Flux2KleinPipeline(
        text_encoder=qwen3(Qwen3ForCausalLM, layers=28),
        tokenizer=letters(),
        **parts(guidance_embeds=False),
    )


def dev():
    from diffusers import Flux2Pipeline

    # Its processor needs torchvision; for texts it equals its tokenizer.
    return Flux2Pipeline(
        text_encoder=mistral3(), tokenizer=letters(), **parts(guidance_embeds=True)
    )
