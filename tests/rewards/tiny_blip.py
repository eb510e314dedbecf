"""A BLIP retrieval model without weights, and the weights of an ImageReward of the same sizes."""

import torch
from policies.flow.tiny_text import letters
from safetensors.torch import save_file

WIDTH, LAYERS, HEADS, PATCH, WORDS = 16, 2, 2, 56, 300


def write_blip(folder):
    """Sizes and a tokenizer, as of a BLIP for larger images."""
    from transformers import BlipConfig

    sees = {"hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": LAYERS}
    sees |= {"num_attention_heads": HEADS}
    reads = sees | {"encoder_hidden_size": WIDTH, "vocab_size": WORDS, "bos_token_id": 0}
    reads |= {"max_position_embeddings": 64}
    BlipConfig(
        vision_config=sees | {"patch_size": PATCH, "image_size": 2 * 224}, text_config=reads
    ).save_pretrained(folder)
    letters().save_pretrained(folder)
    return folder


def write_image_reward(folder):
    """Random weights, including one of an unused part."""
    torch.manual_seed(0)
    weights = {name: 0.5 * torch.randn(size) for name, size in sizes().items()}
    weights |= {n: 1 + x for n, x in weights.items() if "norm" in n.lower() and "weight" in n}
    file = folder / "image_reward.safetensors"
    save_file(weights | {"blip.vision_proj.weight": torch.ones(1)}, file)
    return str(file)


def sizes():
    """The shapes of weights by ImageReward's names."""
    d, tokens = WIDTH, (224 // PATCH) ** 2 + 1
    own = {
        "visual_encoder.cls_token": (1, 1, d),
        "visual_encoder.pos_embed": (1, tokens, d),
        "text_encoder.embeddings.word_embeddings.weight": (WORDS, d),
        "text_encoder.embeddings.position_embeddings.weight": (64, d),
    }
    linear = {"visual_encoder.patch_embed.proj": (d, 3, PATCH, PATCH)}
    norms = ["visual_encoder.norm", "text_encoder.embeddings.LayerNorm"]
    for n in range(LAYERS):
        see, read = f"visual_encoder.blocks.{n}", f"text_encoder.encoder.layer.{n}"
        linear |= {f"{see}.attn.qkv": (3 * d, d), f"{see}.attn.proj": (d, d)}
        linear |= {f"{see}.mlp.fc1": (32, d), f"{see}.mlp.fc2": (d, 32)}
        linear |= {f"{read}.intermediate.dense": (32, d), f"{read}.output.dense": (d, 32)}
        for kind in ("attention", "crossattention"):
            linear |= {f"{read}.{kind}.self.{x}": (d, d) for x in ("query", "key", "value")}
            linear[f"{read}.{kind}.output.dense"] = (d, d)
            norms.append(f"{read}.{kind}.output.LayerNorm")
        norms += [f"{see}.norm1", f"{see}.norm2", f"{read}.output.LayerNorm"]
    own |= {f"{name}.weight": size for name, size in linear.items()}
    own |= {f"{name}.bias": size[:1] for name, size in linear.items()}
    own |= {f"{name}.{x}": (d,) for name in norms for x in ("weight", "bias")}
    head = {0: (8, d), 2: (4, 8), 4: (3, 4), 6: (2, 3), 7: (1, 2)}
    own = {f"blip.{name}": size for name, size in own.items()}
    own |= {f"mlp.layers.{n}.weight": size for n, size in head.items()}
    return own | {f"mlp.layers.{n}.bias": size[:1] for n, size in head.items()}
