"""A HunyuanVideo 1.5 pipeline of random weights."""

import inspect

from policies.flow.tiny_qwen_image import qwen_tokenizer
from policies.flow.tiny_text import TEMPLATE

from tandem.policies.flow.families.hunyuan_video import HunyuanVideo

TOKENS = 40


class FewLetters(HunyuanVideo):
    """Quoted texts have 12 tokens instead of 256."""

    letters = 12


def pipeline():
    from diffusers import (
        AutoencoderKLHunyuanVideo15,
        ClassifierFreeGuidance,
        FlowMatchEulerDiscreteScheduler,
        HunyuanVideo15Pipeline,
        HunyuanVideo15Transformer3DModel,
    )
    from transformers import ByT5Tokenizer

    reads = inspect.signature(HunyuanVideo15Pipeline._get_mllm_prompt_embeds).parameters
    words = f"system\n{reads['system_message'].default}\nuser\nassistant\n"
    tokenizer = qwen_tokenizer(words, chat_template=TEMPLATE)
    made = HunyuanVideo15Pipeline(
        transformer=HunyuanVideo15Transformer3DModel(
            in_channels=17,
            out_channels=8,
            num_attention_heads=2,
            attention_head_dim=12,
            num_layers=2,
            num_refiner_layers=1,
            mlp_ratio=1.0,
            text_embed_dim=32,
            text_embed_2_dim=16,
            image_embed_dim=8,
            rope_axes_dim=(4, 4, 4),
            target_size=32,
            task_type="t2v",
        ),
        vae=AutoencoderKLHunyuanVideo15(
            latent_channels=8, block_out_channels=(8,) * 5, layers_per_block=1
        ),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=5.0),
        text_encoder=qwen2_5(tokenizer),
        tokenizer=tokenizer,
        text_encoder_2=byt5(),
        tokenizer_2=ByT5Tokenizer(),
        guider=ClassifierFreeGuidance(guidance_scale=1.0),
    )
    made.tokenizer_max_length, made.tokenizer_2_max_length = TOKENS, FewLetters.letters
    made.vision_num_semantic_tokens = 2
    return made


def qwen2_5(tokenizer):
    from transformers import Qwen2_5_VLTextModel
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig

    config = Qwen2_5_VLTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        rope_parameters={"rope_type": "default", "mrope_section": [2, 3, 3]},
    )
    return Qwen2_5_VLTextModel(config).eval()


def byt5():
    from transformers import T5Config, T5EncoderModel

    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    return T5EncoderModel(T5Config(vocab_size=384, dropout_rate=0.0, **sizes)).eval()


def ask(pipeline, *, start, output_type, **own):
    """Latents and decoded frames of a pipeline without a callback for its steps."""
    own |= {"latents": start[None], "return_dict": False}
    (latents,) = pipeline(output_type="latent", **own)
    film = pipeline.vae.decode(latents / pipeline.vae.config.scaling_factor).sample
    return latents, pipeline.video_processor.postprocess_video(film, output_type=output_type)
