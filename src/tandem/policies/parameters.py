"""Trained parameters of a policy: named for checkpoints, grouped for optimisers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch import nn


def trainable(network: nn.Module, critic: nn.Module | None) -> dict[str, nn.Parameter]:
    """All that learns, by name."""
    parts = {"": network} | ({} if critic is None else {"critic.": critic})
    return {
        f"{prefix}{name}": p
        for prefix, part in parts.items()
        for name, p in part.named_parameters()
        if p.requires_grad
    }


def groups(network: nn.Module, critic: nn.Module | None) -> dict[str, list[nn.Parameter]]:
    """What an optimiser treats alike; a critic, if there is one, comes last."""
    policy = [p for p in network.parameters() if p.requires_grad]
    return {"policy": policy} | ({} if critic is None else {"critic": list(critic.parameters())})


def move(network: nn.Module, device: torch.device) -> None:
    """A frozen network to where it is asked, if it is elsewhere: moving weights that are cut over
    ranks lets go of what is gathered of them."""
    if next(network.parameters()).device != device:
        network.to(device)


def warn_of_rounding(trained: Mapping[str, nn.Parameter]) -> None:
    if any(p.dtype == torch.bfloat16 for p in trained.values()):
        warnings.warn(
            "bfloat16 weights are trained, and they lose updates below 1/256 of a weight: set "
            "model.lora, or model.dtype=float32 with trainer.precision=bf16-mixed",
            stacklevel=2,
        )
