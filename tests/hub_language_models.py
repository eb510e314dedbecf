"""Tiny random language models in the hub's format: configuration, weights, tokenizer, template."""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

QWEN3_TALK = """\
{%- if messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages if message.role in ('user', 'assistant') %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}"""
LLAMA3_TALK = """\
{{- bos_token }}
{%- for message in messages %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
{{- message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""
QWEN3_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
LLAMA3_SPECIAL = [
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"
]  # fmt: skip
SIZE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
}


def byte_pieces(special: list[str]) -> Tokenizer:
    """Bytes without merges: it encodes any text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: i for i, symbol in enumerate([*alphabet, *special])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def write_qwen3(folder: Path, *, tied: bool = True, head_dim: int = SIZE["head_dim"]) -> Path:
    """It has two end tokens, pads with one of them, and has its own sampling numbers by default."""
    from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config
    from transformers import Qwen3ForCausalLM as Model

    pieces = byte_pieces(QWEN3_SPECIAL)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        chat_template=QWEN3_TALK,
    )
    ids = pieces.token_to_id
    ends = [ids("<|im_end|>"), ids("<|endoftext|>")]
    config = Qwen3Config(
        **(SIZE | {"head_dim": head_dim}),
        vocab_size=272,
        tie_word_embeddings=tied,
        eos_token_id=ends[0],
        bos_token_id=ends[1],
    )
    own = GenerationConfig(
        eos_token_id=ends, pad_token_id=ends[1], do_sample=True, temperature=0.6, top_k=20
    )
    return write(Model, config, tokenizer, own, folder)


def write_llama3(folder: Path) -> Path:
    """It has no padding token, a begin token, and a separate end token for turns."""
    from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast
    from transformers import LlamaForCausalLM as Model

    pieces = byte_pieces(LLAMA3_SPECIAL)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        bos_token="<|begin_of_text|>",
        eos_token="<|eot_id|>",
        chat_template=LLAMA3_TALK,
    )
    ids = pieces.token_to_id
    begin, end, turn = (ids(LLAMA3_SPECIAL[i]) for i in (0, 1, 4))
    config = LlamaConfig(
        **SIZE, vocab_size=272, tie_word_embeddings=False, bos_token_id=begin, eos_token_id=turn
    )
    own = GenerationConfig(bos_token_id=begin, eos_token_id=[end, turn], do_sample=True)
    return write(Model, config, tokenizer, own, folder)


def write(model: type, config, tokenizer, own, folder: Path) -> Path:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = model(config).to(torch.bfloat16)
    network.generation_config = own
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_rows(path: Path, count: int = 12) -> Path:
    """Questions with a correct answer, a better and a worse one."""
    rows = [
        {
            "messages": [{"role": "user", "content": f"say {n}"}],
            "answer": str(n),
            "chosen": f"{n}!",
            "rejected": f"not {n}, but {n + 1}",
        }
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
