"""Wan pipelines of random weights: from text and from an image, with one transformer or two; the
small one of 2.2 has timesteps per token. And SkyReels-V2, which descends from it."""

from types import SimpleNamespace

from policies.flow.tiny_text import letters, umt5

BOUNDARY = 0.7  # between the noise levels of the two transformers


def pipeline(*, second=False, expand_timesteps=False, **options):
    """Text to video."""
    from diffusers import WanPipeline

    return WanPipeline(
        transformer=transformer(),
        transformer_2=transformer() if second else None,
        boundary_ratio=BOUNDARY if second else None,
        expand_timesteps=expand_timesteps,
        **others(**options),
    )


def of_picture(*, sees=False, second=False, expand_timesteps=False):
    """Image to video; `sees`: also through a CLIP."""
    from diffusers import WanImageToVideoPipeline
    from diffusers.pipelines.wan import pipeline_wan_i2v
    from transformers import CLIPImageProcessorPil

    vars(pipeline_wan_i2v).setdefault("ftfy", SimpleNamespace(fix_text=str))  # it needs one
    sizes = {"in_channels": 16 if expand_timesteps else 36, "image_dim": 16 if sees else None}
    return WanImageToVideoPipeline(
        transformer=transformer(**sizes),
        transformer_2=transformer(**sizes) if second else None,
        image_encoder=clip() if sees else None,
        image_processor=CLIPImageProcessorPil() if sees else None,
        boundary_ratio=BOUNDARY if second else None,
        expand_timesteps=expand_timesteps,
        **others(),
    )


def skyreels():
    from diffusers import SkyReelsV2Pipeline, SkyReelsV2Transformer3DModel
    from diffusers.pipelines.skyreels_v2 import pipeline_skyreels_v2

    vars(pipeline_skyreels_v2).setdefault("ftfy", SimpleNamespace(fix_text=str))  # it needs one
    return SkyReelsV2Pipeline(
        transformer=transformer(kind=SkyReelsV2Transformer3DModel), **others()
    )


def transformer(in_channels=16, image_dim=None, kind=None):
    """`kind`: its class; None: Wan's."""
    from diffusers import WanTransformer3DModel

    return (kind or WanTransformer3DModel)(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=in_channels,
        out_channels=16,
        text_dim=32,
        freq_dim=16,
        ffn_dim=32,
        num_layers=2,
        rope_max_seq_len=32,
        image_dim=image_dim,
        added_kv_proj_dim=None if image_dim is None else 24,
    )


def clip():
    from transformers import CLIPVisionConfig, CLIPVisionModel

    return CLIPVisionModel(
        CLIPVisionConfig(
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=224,
            patch_size=14,
        )
    ).eval()


def others(**options):
    from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler

    return {
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=3.0),
        "vae": AutoencoderKLWan(
            base_dim=4, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, **options
        ),
        "text_encoder": umt5(),
        "tokenizer": letters(),
    }
