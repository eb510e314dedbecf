"""Counts of the rows that a pipeline's networks compute, for Tandem and Flow-Factory alike."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn


def count_rows(*, transformer: nn.Module, vae: nn.Module) -> Counter[str]:
    """Rows of all calls from now on: of the transformer without and with gradient, of the decoder;
    and the number of the transformer's calls."""
    rows: Counter[str] = Counter()

    def denoises(_: nn.Module, __: tuple, given: dict[str, Tensor]) -> None:
        kind = "with gradient" if torch.is_grad_enabled() else "without gradient"
        rows[f"passes {kind}"] += 1
        rows[f"rows {kind}"] += len(given["hidden_states"])

    def decodes(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        rows["decoded"] += len(given[0])

    transformer.register_forward_pre_hook(denoises, with_kwargs=True)
    vae.decoder.register_forward_pre_hook(decodes)
    return rows
