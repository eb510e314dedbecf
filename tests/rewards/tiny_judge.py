"""A small random reward model in the hub's format, with a chat template."""

from pathlib import Path

import torch
from policies.small_language import byte_tokenizer

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}{{ raise_exception('tools are not supported') }}{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>"
    "{% endfor %}"
)


def write_judge(
    folder: Path, *, template: str | None = TEMPLATE, pad: str | None = "<|pad|>", labels: int = 1
) -> Path:
    """A `Qwen3ForSequenceClassification`; its configuration has the token `pad`, or none."""
    from transformers import Qwen3Config, Qwen3ForSequenceClassification

    torch.manual_seed(0)
    tokenizer = byte_tokenizer(template, pad="<|pad|>")
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=128,
        num_labels=labels,
        pad_token_id=None if pad is None else tokenizer.convert_tokens_to_ids(pad),
    )
    model = Qwen3ForSequenceClassification(config).eval()
    for parameter in model.parameters():  # wide enough that every token matters
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
