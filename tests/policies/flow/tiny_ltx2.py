"""An LTX-2 pipeline of random weights, with its sound."""

import torch
from policies.flow.tiny_text import letters

CHANNELS, OF_SOUND = 16, 32  # of a token of a film, and of one of its sound
FRAMES_PER_SECOND = 24


def pipeline():
    from diffusers import AutoencoderKLLTX2Audio, FlowMatchEulerDiscreteScheduler, LTX2Pipeline

    return LTX2Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True,
            base_shift=0.95,
            max_shift=2.05,
            base_image_seq_len=1024,
            max_image_seq_len=4096,
            shift_terminal=0.1,
        ),
        vae=vae(),
        audio_vae=AutoencoderKLLTX2Audio(
            base_channels=OF_SOUND, ch_mult=(1,), num_res_blocks=1, latent_channels=OF_SOUND // 16
        ),
        text_encoder=gemma3(),
        tokenizer=letters(),
        connectors=connectors(),
        transformer=transformer(),
        vocoder=vocoder(),
    )


def ask(pipeline, *, start, output_type, **own):
    """Latents of a film with those of its sound behind its channels, and what is shown."""
    config, behind = pipeline.transformer.config, start[None, CHANNELS:]
    of_second = config.audio_sampling_rate / config.audio_hop_length / config.audio_scale_factor
    heard = round(own["num_frames"] / FRAMES_PER_SECOND * of_second) * OF_SOUND
    own |= {"stg_scale": 0.0, "modality_scale": 1.0, "guidance_rescale": 0.0}
    own |= {f"audio_{name}": own[name] for name in [*own] if name.endswith(("scale", "rescale"))}
    own["latents"] = pipeline._pack_latents(start[None, :CHANNELS])
    own["audio_latents"] = behind.flatten()[:heard].view(1, -1, OF_SOUND)
    latents, sound = pipeline(output_type="latent", return_dict=False, **own)
    vae, rest = pipeline.vae, torch.zeros_like(behind)
    shown = pipeline.video_processor.postprocess_video(
        vae.decode(latents, None).sample, output_type=output_type
    )
    latents = pipeline._normalize_latents(latents, vae.latents_mean, vae.latents_std)
    rest.view(-1)[:heard] = pipeline._pack_audio_latents(sound).flatten()
    return torch.cat([latents, rest], 1), shown


def transformer():
    from diffusers import LTX2VideoTransformer3DModel

    return LTX2VideoTransformer3DModel(
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        num_attention_heads=2,
        attention_head_dim=12,
        cross_attention_dim=24,
        audio_in_channels=OF_SOUND,
        audio_out_channels=OF_SOUND,
        audio_num_attention_heads=2,
        audio_attention_head_dim=8,
        audio_cross_attention_dim=16,
        num_layers=2,
        caption_channels=16,
        rope_double_precision=False,
    )


def connectors():
    from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors

    sizes = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1}
    sizes["num_learnable_registers"] = 8
    given = {f"{kind}_connector_{k}": n for kind in ("video", "audio") for k, n in sizes.items()}
    return LTX2TextConnectors(
        caption_channels=16, text_proj_in_factor=3, rope_double_precision=False, **given
    )


def vae():
    from diffusers import AutoencoderKLLTX2Video

    made = AutoencoderKLLTX2Video(
        latent_channels=CHANNELS,
        block_out_channels=(8,),
        down_block_types=("LTX2VideoDownBlock3D",),
        decoder_block_out_channels=(8,),
        layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
        spatio_temporal_scaling=(True,),
        decoder_spatio_temporal_scaling=(True,),
        decoder_inject_noise=(False, False),
        downsample_type=("spatiotemporal",),
        upsample_type=("spatiotemporal",),
        upsample_residual=(False,),
        upsample_factor=(1,),
    )
    made.latents_mean.fill_(0.5)
    made.latents_std.fill_(2.0)
    return made.eval()


def vocoder():
    from diffusers.pipelines.ltx2.vocoder import LTX2Vocoder

    return LTX2Vocoder(
        in_channels=128,
        hidden_channels=8,
        upsample_kernel_sizes=[4, 4],
        upsample_factors=[2, 2],
        resnet_kernel_sizes=[3],
        resnet_dilations=[[1]],
    )


def gemma3():
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    return Gemma3ForConditionalGeneration(
        Gemma3Config(
            text_config={
                "vocab_size": 300,
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "head_dim": 8,
            },
            vision_config={
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 28,
                "patch_size": 14,
            },
            mm_tokens_per_image=4,
            image_token_index=299,
        )
    ).eval()
