"""An LTX-Video pipeline of random weights."""

from policies.flow.tiny_sd3 import t5, t5_tokenizer


def pipeline(*, timestep_conditioning=False):
    from diffusers import (
        FlowMatchEulerDiscreteScheduler,
        LTXPipeline,
        LTXVideoTransformer3DModel,
    )

    return LTXPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True,
            base_shift=0.95,
            max_shift=2.05,
            base_image_seq_len=1024,
            max_image_seq_len=4096,
            shift_terminal=0.1,
        ),
        vae=vae(timestep_conditioning),
        text_encoder=t5(),
        tokenizer=t5_tokenizer(),
        transformer=LTXVideoTransformer3DModel(
            in_channels=16,
            out_channels=16,
            num_attention_heads=2,
            attention_head_dim=12,
            cross_attention_dim=24,
            num_layers=2,
            caption_channels=32,
        ),
    )


def vae(timestep_conditioning):
    from diffusers import AutoencoderKLLTXVideo

    made = AutoencoderKLLTXVideo(
        latent_channels=16,
        block_out_channels=(8,),
        down_block_types=("LTXVideoDownBlock3D",),
        decoder_block_out_channels=(8,),
        layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
        spatio_temporal_scaling=(True,),
        decoder_spatio_temporal_scaling=(True,),
        decoder_inject_noise=(False, False),
        downsample_type=("conv",),
        upsample_residual=(False,),
        upsample_factor=(1,),
        timestep_conditioning=timestep_conditioning,
    )
    made.latents_mean.fill_(0.5)
    made.latents_std.fill_(2.0)
    return made.eval()


def ask(pipeline, *, start, **own):
    """Latents after the last step, and the decoded frames."""
    seen = []

    def keep(_, step, time, found):
        seen.append(found["latents"])
        return {}

    own |= {"latents": pipeline._pack_latents(start[None]), "return_dict": False}
    (shown,) = pipeline(callback_on_step_end=keep, **own)
    return pipeline._unpack_latents(seen[-1], *start.shape[1:]), shown
