"""Kernels that need a GPU and packages of their own: flash attention, and Liger's fused layers."""

from __future__ import annotations

import inspect
from importlib.util import find_spec

import torch
from torch import nn

from tandem.contracts import need_extra

# Packages of flash attention; transformers accepts any of them, and loads hub kernels by the last.
PACKAGES = {"flash_attention_2": ("flash_attn", "kernels")}


def check_kernels(attention: str | None, *, liger: bool, float32: bool) -> None:
    """Raise ValueError for kernels that cannot run here, before anything is loaded. `float32`:
    whether passes compute in it, as far as is known."""
    if liger:
        check_liger()
    if attention is not None and "flash" in attention:
        check_flash(attention, float32=float32)


def check_flash(attention: str, *, float32: bool) -> None:
    """Raise ValueError for flash attention that cannot run here."""
    given, instead = f"model.attn_implementation={attention}", "set model.attn_implementation=sdpa"
    if not torch.cuda.is_available():
        raise ValueError(f"{given}: it needs a GPU, and there is none; {instead}")
    packages = PACKAGES.get(attention, ())
    if packages and not any(find_spec(name) for name in packages):
        raise ValueError(f"{given} needs a package: pip install {packages[0]}; or {instead}")
    if float32:
        raise ValueError(
            f"{given} does not support float32; set trainer.precision=bf16-mixed, or "
            f"model.dtype=bfloat16 with model.lora, or {instead}"
        )


def check_liger() -> None:
    """Raise ValueError if the kernels cannot run here."""
    if not torch.cuda.is_available():
        raise ValueError(
            "model.liger=true: it needs a GPU, and there is none; set model.liger=false"
        )
    if find_spec("liger_kernel") is None:
        raise ValueError(need_extra("model.liger=true", "liger"))


def fuse(*models: nn.Module | None) -> None:
    """Replace the models' norms, gates and rotary embeddings by Liger's kernels."""
    for model in models:
        if model is not None:
            _fuse(model)


def _fuse(model: nn.Module) -> None:
    """Losses are not replaced: Liger's read whole logits, which are never materialised here."""
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    family = model.config.model_type
    apply = MODEL_TYPE_TO_APPLY_LIGER_FN.get(family)
    if apply is None:
        raise ValueError(
            f"model.liger=true: Liger has no kernels for {family}; set model.liger=false"
        )
    losses = [name for name in inspect.signature(apply).parameters if "cross_entropy" in name]
    apply(model=model, **dict.fromkeys(losses, False))
