"""A Stable Diffusion 3 pipeline of a few thousand random weights, written to a folder."""

import torch

SPECIAL = ["<|startoftext|>", "<|endoftext|>"]


def write_pipeline(folder, seed=0, **options):
    """Write the folder by `save_pretrained`."""
    torch.manual_seed(seed)
    pipeline(**options).save_pretrained(folder)
    return folder


def pipeline(*, channels=4, blocks=(8, 16)):
    """`channels`, `blocks`: of the VAE; Stable Diffusion 3 has 16 channels and four blocks."""
    from diffusers import (
        FlowMatchEulerDiscreteScheduler,
        SD3Transformer2DModel,
        StableDiffusion3Pipeline,
    )

    return StableDiffusion3Pipeline(
        transformer=SD3Transformer2DModel(
            sample_size=8,
            patch_size=2,
            in_channels=channels,
            out_channels=channels,
            num_layers=2,
            attention_head_dim=8,
            num_attention_heads=2,
            joint_attention_dim=32,
            caption_projection_dim=16,
            pooled_projection_dim=64,
            pos_embed_max_size=8,
            qk_norm="rms_norm",
            dual_attention_layers=(0,),
        ),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae(channels, blocks, shift=0.06, scale=1.5),
        text_encoder=projecting_clip(),
        tokenizer=clip_tokenizer(),
        text_encoder_2=projecting_clip(),
        tokenizer_2=clip_tokenizer(),
        text_encoder_3=t5(),
        tokenizer_3=t5_tokenizer(),
    )


def vae(channels, blocks, *, shift, scale):
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        in_channels=3,
        out_channels=3,
        latent_channels=channels,
        block_out_channels=blocks,
        down_block_types=("DownEncoderBlock2D",) * len(blocks),
        up_block_types=("UpDecoderBlock2D",) * len(blocks),
        layers_per_block=1,
        norm_num_groups=4,
        use_quant_conv=False,
        use_post_quant_conv=False,
        shift_factor=shift,
        scaling_factor=scale,
    )


def projecting_clip():
    from transformers import CLIPTextModelWithProjection

    return clip(CLIPTextModelWithProjection, projection_dim=32)


def clip(kind, **options):
    from transformers import CLIPTextConfig

    tokenizer = clip_tokenizer()
    return kind(
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
            **options,
        )
    ).eval()


def clip_tokenizer():
    from tokenizers import pre_tokenizers
    from transformers import CLIPTokenizer

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    symbols = [*letters, *(letter + "</w>" for letter in letters), *SPECIAL]
    vocabulary = {symbol: place for place, symbol in enumerate(symbols)}
    return CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=77)


def t5():
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(
        T5Config(
            vocab_size=104, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0
        )
    ).eval()


def t5_tokenizer():
    from transformers import T5Tokenizer

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    pieces += [(chr(code), -3.0) for code in range(33, 127)]
    return T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=32)
