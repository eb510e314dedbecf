"""Kernels that run on a GPU alone, and in packages of their own: refused where they could not."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from tandem.policies.language.liger import check_liger

# Of flash attention; transformers takes any of the first, or those of the hub through the last.
PACKAGES = {"flash_attention_2": ("flash_attn", "kernels")}


def check_kernels(liger: bool, attention: str | None) -> None:
    """Raises ValueError. Nothing needs to be loaded for it."""
    if liger:
        check_liger()
    if attention is not None and "flash" in attention:
        check_flash(attention)


def check_flash(attention: str) -> None:
    """Raise ValueError where flash attention is asked for and cannot run."""
    given, instead = f"model.attn_implementation={attention}", "set model.attn_implementation=sdpa"
    if not torch.cuda.is_available():
        raise ValueError(f"{given}: it runs on a GPU alone, and there is none here; {instead}")
    packages = PACKAGES.get(attention, ())
    if packages and not any(find_spec(name) for name in packages):
        raise ValueError(f"{given} needs a package: pip install {packages[0]}; or {instead}")
