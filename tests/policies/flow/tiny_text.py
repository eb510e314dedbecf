"""Tokenizers and text encoders of a few thousand random weights, shared by several pipelines."""

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for c in m['content'] %}{{ c['text'] }}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def letters(**options):
    """A tokenizer of bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    symbols = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    model = Tokenizer(models.BPE(vocab={x: i for i, x in enumerate(symbols)}, merges=[]))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=model,
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        additional_special_tokens=SPECIAL[1:2],
        chat_template=TEMPLATE,
        **options,
    )


def qwen3(kind, layers=2, width=16):
    """`kind`: one of transformers' Qwen3 classes."""
    from transformers import Qwen3Config

    return kind(
        Qwen3Config(
            vocab_size=300,
            hidden_size=width,
            intermediate_size=width,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
        )
    ).eval()


def umt5():
    from transformers import UMT5Config, UMT5EncoderModel

    return UMT5EncoderModel(
        UMT5Config(
            vocab_size=300, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0
        )
    ).eval()


def mistral3():
    from transformers import Mistral3Config, Mistral3ForConditionalGeneration

    config = Mistral3Config(
        text_config={
            "model_type": "mistral",
            "vocab_size": 300,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 31,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 8,
        },
        vision_config={
            "model_type": "pixtral",
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "head_dim": 8,
        },
        image_token_index=299,
    )
    return Mistral3ForConditionalGeneration(config).eval()
