"""Random checkpoints of masked-diffusion models in the hub's formats, a few thousand weights, and
LLaDA's forward pass written out."""

import json

import torch
from hub_language_models import byte_pieces
from safetensors.torch import save_file
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

VOCABULARY = 272
WIDTH, LAYERS, HEADS, GROUPS, INNER = 32, 2, 4, 2, 48
MASK, END = 270, 256
LLADA = {
    "model_type": "llada", "architectures": ["LLaDAModelLM"], "block_type": "llama",
    "auto_map": {"AutoModelForCausalLM": "modeling_llada.LLaDAModelLM"},
    "d_model": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "n_kv_heads": GROUPS,
    "mlp_hidden_size": INNER, "vocab_size": VOCABULARY, "embedding_size": VOCABULARY,
    "max_sequence_length": 512, "rope_theta": 500000.0, "layer_norm_type": "rms",
    "rms_norm_eps": 1e-5, "activation_type": "silu", "weight_tying": False,
    "mask_token_id": MASK, "eos_token_id": END, "pad_token_id": END,
}  # fmt: skip
DREAM = {
    "model_type": "Dream", "architectures": ["DreamModel"],
    "auto_map": {"AutoModel": "modeling_dream.DreamModel"},
    "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS, "intermediate_size": INNER, "vocab_size": VOCABULARY,
    "max_position_embeddings": 512, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False, "mask_token_id": MASK, "eos_token_id": END, "pad_token_id": END,
}  # fmt: skip


def write_llada(folder):
    """With LLaDA's names of weights, a tokenizer.json, and custom code that must not run."""
    torch.manual_seed(0)
    narrow = WIDTH * GROUPS // HEADS
    shapes = {"q_proj": (WIDTH, WIDTH), "k_proj": (narrow, WIDTH), "v_proj": (narrow, WIDTH),
        "attn_out": (WIDTH, WIDTH), "ff_proj": (INNER, WIDTH), "up_proj": (INNER, WIDTH),
        "ff_out": (WIDTH, INNER), "attn_norm": (WIDTH,), "ff_norm": (WIDTH,)}  # fmt: skip
    state = {
        f"model.transformer.blocks.{layer}.{name}.weight": 0.2 * torch.randn(shape)
        for layer in range(LAYERS)
        for name, shape in shapes.items()
    }
    state["model.transformer.wte.weight"] = torch.randn(VOCABULARY, WIDTH)
    state["model.transformer.ln_f.weight"] = 1 + 0.1 * torch.randn(WIDTH)
    state["model.transformer.ff_out.weight"] = 0.3 * torch.randn(VOCABULARY, WIDTH)
    return write(folder, LLADA, state)


def write_dream(folder):
    """With Qwen2.5's names of weights and tokenizer, and Dream's own name."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    own = {k: v for k, v in DREAM.items() if k not in ("model_type", "architectures", "auto_map")}
    state = Qwen2ForCausalLM(Qwen2Config(**own)).state_dict()
    return write(folder, DREAM, {name: x.contiguous() for name, x in state.items()})


def write_modern_bert(folder, *, end=END, vocabulary=VOCABULARY):
    """Its head has several layers, the last of which is named `decoder`."""
    from transformers import ModernBertConfig, ModernBertForMaskedLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = ModernBertConfig(
        vocab_size=vocabulary, hidden_size=WIDTH, intermediate_size=INNER,
        num_hidden_layers=LAYERS, num_attention_heads=HEADS, max_position_embeddings=512,
        pad_token_id=END, bos_token_id=None, eos_token_id=end, cls_token_id=None, sep_token_id=None,
    )  # fmt: skip
    ModernBertForMaskedLM(config).save_pretrained(folder)
    pieces = byte_pieces(["<|endoftext|>", "[MASK]"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=pieces, pad_token="<|endoftext|>", mask_token="[MASK]"
    )
    tokenizer.save_pretrained(folder)
    return folder


def write(folder, config, state):
    from transformers import PreTrainedTokenizerFast

    folder.mkdir(parents=True)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling_llada.py").write_text("raise SystemExit('remote code was run')")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_pieces(["<|endoftext|>"]),
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
    )
    tokenizer.save_pretrained(folder)
    return folder


def llada_logits(state, tokens):
    """LLaDA's forward pass, [B, S, V]: attention without a mask over rotated queries and keys."""
    x = state["model.transformer.wte.weight"][tokens]
    for layer in range(LAYERS):
        own = {
            name.split(".")[4]: w
            for name, w in state.items()
            if name.startswith(f"model.transformer.blocks.{layer}.")
        }
        y = rms_norm(x, (WIDTH,), own["attn_norm"], 1e-5)
        q, k, v = (heads(y @ own[f"{name}_proj"].T) for name in "qkv")
        k, v = (one.repeat_interleave(HEADS // GROUPS, 1) for one in (k, v))
        seen = scaled_dot_product_attention(rotate(q), rotate(k), v)
        x = x + seen.transpose(1, 2).flatten(2) @ own["attn_out"].T
        y = rms_norm(x, (WIDTH,), own["ff_norm"], 1e-5)
        x = x + (silu(y @ own["ff_proj"].T) * (y @ own["up_proj"].T)) @ own["ff_out"].T
    x = rms_norm(x, (WIDTH,), state["model.transformer.ln_f.weight"], 1e-5)
    return x @ state["model.transformer.ff_out.weight"].T


def heads(x):
    return x.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)


def rotate(x):
    """The two halves of a head, rotated by position * theta^(-2i / size)."""
    size = x.shape[-1]
    speed = 500000.0 ** -(torch.arange(0, size, 2) / size)
    angle = (torch.arange(x.shape[2])[:, None] * speed).repeat(1, 2)
    first, second = x.chunk(2, -1)
    return x * angle.cos() + torch.cat([-second, first], -1) * angle.sin()
