"""The weights of a network as files, on their way to an engine; and the network as it was then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

ADAPTER = "default"  # peft's name for the one adapter that is trained


class WeightFiles:
    """The whole network in Hugging Face format, or its adapters alone in peft's."""

    def __init__(self, network: nn.Module, *, adapter: bool) -> None:
        self.network, self.adapter = network, adapter

    def save(self, folder: Path) -> None:
        """Write the weights of the network, or its adapters alone, into a folder."""
        # "auto" would ask the hub whether the vocabulary grew.
        options = {"save_embedding_layers": False} if self.adapter else {}
        self.network.save_pretrained(str(folder), **options)

    @contextmanager
    def as_in(self, folder: Path) -> Iterator[bool]:
        """The network with the weights of an older handover, and afterwards with its own again.

        False if the files fit no weight.
        """
        own = dict(self.network.named_parameters())
        saved = {name: p for name, p in read(folder, adapter=self.adapter) if name in own}
        before = {name: own[name].detach().cpu().clone() for name in saved}
        try:
            put(own, saved)
            yield bool(saved)
        finally:
            put(own, before)


def read(folder: Path, *, adapter: bool) -> Iterator[tuple[str, Tensor]]:
    """Names as the network has them, and tensors. Of any shape [...]."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118, it is no mapping
                yield (in_network(name) if adapter else name), tensors.get_tensor(name)


def in_network(name: str) -> str:
    """peft leaves the name of the adapter out of its files."""
    layer, _, kind = name.rpartition(".")
    return f"{layer}.{ADAPTER}.{kind}"


@torch.no_grad()
def put(into: dict[str, nn.Parameter], tensors: dict[str, Tensor]) -> None:
    """Copy tensors into those of the same names. Of any shape [...]."""
    for name, tensor in tensors.items():
        into[name].copy_(tensor)
