"""A Sana pipeline of random weights."""

from policies.flow.tiny_text import letters


def pipeline():
    from diffusers import (
        AutoencoderDC,
        FlowMatchEulerDiscreteScheduler,
        SanaPipeline,
        SanaTransformer2DModel,
    )
    from transformers import Gemma2Config, Gemma2Model

    widths = (8, 8, 8, 16)
    return SanaPipeline(
        transformer=SanaTransformer2DModel(
            in_channels=16,
            out_channels=16,
            num_layers=2,
            num_attention_heads=2,
            attention_head_dim=8,
            num_cross_attention_heads=2,
            cross_attention_head_dim=8,
            cross_attention_dim=16,
            caption_channels=16,
            sample_size=8,
            patch_size=1,
        ),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=AutoencoderDC(
            latent_channels=16,
            attention_head_dim=2,
            encoder_block_out_channels=widths,
            decoder_block_out_channels=widths,
            encoder_layers_per_block=(1,) * 4,
            decoder_layers_per_block=(1,) * 4,
            encoder_qkv_multiscales=((),) * 4,
            decoder_qkv_multiscales=((),) * 4,
            scaling_factor=0.41407,
        ),
        text_encoder=Gemma2Model(
            Gemma2Config(
                vocab_size=300,
                hidden_size=16,
                intermediate_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                num_key_value_heads=1,
                head_dim=8,
            )
        ).eval(),
        tokenizer=letters(),
    )
