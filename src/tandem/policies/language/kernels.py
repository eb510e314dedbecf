"""Kernels that need a GPU and packages of their own, and the checks that refuse them early."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from tandem.policies.language.liger import check_liger

# Packages of flash attention; transformers accepts any of them, and loads hub kernels by the last.
PACKAGES = {"flash_attention_2": ("flash_attn", "kernels")}


def check_kernels(attention: str | None, *, liger: bool) -> None:
    """Raise ValueError for kernels that cannot run here, before anything is loaded."""
    if liger:
        check_liger()
    if attention is not None and "flash" in attention:
        check_flash(attention)


def check_flash(attention: str) -> None:
    """Raise ValueError for flash attention that cannot run here."""
    given, instead = f"model.attn_implementation={attention}", "set model.attn_implementation=sdpa"
    if not torch.cuda.is_available():
        raise ValueError(f"{given}: it needs a GPU, and there is none; {instead}")
    packages = PACKAGES.get(attention, ())
    if packages and not any(find_spec(name) for name in packages):
        raise ValueError(f"{given} needs a package: pip install {packages[0]}; or {instead}")
