"""A small random CLIP checkpoint in the hub's format, with its processor."""

from pathlib import Path

import torch

SPECIAL = ("<|startoftext|>", "<|endoftext|>")


def write_clip(folder: Path, *, seed: int = 0, processor: bool = True) -> Path:
    """A `CLIPModel` for images of 32 x 32 pixels; `processor=False` writes no processor."""
    torch.manual_seed(seed)
    model = clip_model()
    model.save_pretrained(folder)
    if processor:
        write_processor(folder)
    return folder


def write_processor(folder: Path) -> Path:
    from transformers import CLIPImageProcessorPil

    size = {"height": 32, "width": 32}
    CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=size).save_pretrained(folder)
    clip_tokenizer().save_pretrained(folder)
    return folder


def clip_model():
    from transformers import CLIPConfig, CLIPModel

    tokenizer = clip_tokenizer()
    layers = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    layers["num_attention_heads"] = 2
    text = {
        **layers,
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {**layers, "image_size": 32, "patch_size": 8}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)).eval()
    for parameter in model.parameters():  # large enough that pictures and texts differ
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def clip_tokenizer():
    from tokenizers import pre_tokenizers
    from transformers import CLIPTokenizer

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    symbols = [*letters, *(letter + "</w>" for letter in letters), *SPECIAL]
    vocabulary = {symbol: place for place, symbol in enumerate(symbols)}
    return CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=77)


def write_head(folder: Path) -> str:
    """One linear layer on the features of `clip_model`; an aesthetic predictor has five."""
    from safetensors.torch import save_file

    file = str(folder / "head.safetensors")
    save_file({"layers.0.weight": torch.ones(1, 16), "layers.0.bias": torch.zeros(1)}, file)
    return file
