"""Fused kernels for the layers of a language model: Liger's, which run on a GPU alone."""

from __future__ import annotations

import inspect
from importlib.util import find_spec

import torch
from torch import nn


def check_liger() -> None:
    """Raises ValueError where its kernels could not run."""
    if not torch.cuda.is_available():
        raise ValueError(
            "model.liger=true: its kernels run on a GPU alone, and there is none here; set "
            "model.liger=false"
        )
    if find_spec("liger_kernel") is None:
        raise ValueError("model.liger=true needs a package: pip install 'tandem[liger]'")


def fuse(*models: nn.Module | None) -> None:
    """Put its norms, gates and rotations in the place of the models' own, by Liger's own choice."""
    for model in models:
        if model is not None:
            _fuse(model)


def _fuse(model: nn.Module) -> None:
    """Losses stay ours: Liger has them from logits, and logits are never whole here."""
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    family = model.config.model_type
    apply = MODEL_TYPE_TO_APPLY_LIGER_FN.get(family)
    if apply is None:
        raise ValueError(
            f"model.liger=true: there are no kernels for {family}; set model.liger=false"
        )
    losses = [name for name in inspect.signature(apply).parameters if "cross_entropy" in name]
    apply(model=model, **dict.fromkeys(losses, False))
