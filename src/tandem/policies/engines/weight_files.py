"""Weights of a network as files for an engine, and the network under the weights of older files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from tandem import distributed

ADAPTER = "default"  # peft's name for the one adapter that is trained


@dataclass(frozen=True, slots=True)
class CopiedWeights:
    """A copy of weights in host memory, which may be written while training continues."""

    network: nn.Module
    own: Mapping[str, Tensor]  # by the network's names; empty except on the first rank
    adapter: bool
    device: torch.device  # on which the network is trained
    is_sharded = False

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.own.values())

    def save(self, folder: Path) -> None:
        """Write them into a folder."""
        save(self.network, folder, adapter=self.adapter, tensors=self.own)

    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors of the files. Of any shape [...]."""
        return as_in_files(self.network, self.own)

    def copy_to_host(self) -> CopiedWeights:
        return self


class WeightFiles:
    """The whole network in Hugging Face format, or its adapters alone in peft's."""

    def __init__(self, network: nn.Module, *, adapter: bool) -> None:
        self.network, self.adapter = network, adapter

    @property
    def is_sharded(self) -> bool:
        return any(distributed.is_sharded(p) for p in self.network.parameters())

    @property
    def nbytes(self) -> int:
        return sum(p.numel() * p.element_size() for p in self._own().values())

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def _own(self) -> dict[str, Tensor]:
        """All parameters and buffers, or only the trained ones of an adapted network."""
        own = self.network.state_dict(keep_vars=True)
        return {name: p for name, p in own.items() if p.requires_grad or not self.adapter}

    def save(self, folder: Path) -> None:
        """Write the weights of the network, or its adapters alone, into a folder."""
        save(self.network, folder, adapter=self.adapter)

    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors of the files. Of any shape [...]."""
        own = {name: p.detach() for name, p in self._own().items()}
        return as_in_files(self.network, own)

    def copy_to_host(self) -> CopiedWeights:
        """A copy in host memory, in which two names of one weight share it."""
        own = self._own()
        # All ranks gather the same tensors in the same order, whether they keep them or not.
        whole = {t: distributed.gather_on_first(t) for t in dict.fromkeys(own.values())}
        copies = {t: on_host(t, found) for t, found in whole.items() if found is not None}
        tensors = {name: copies[tensor] for name, tensor in own.items() if tensor in copies}
        return CopiedWeights(self.network, tensors, self.adapter, self.device)

    @contextmanager
    def as_in(self, folder: Path) -> Iterator[bool]:
        """A context in which the network has the weights of an older handover.

        False if a trained weight is not among the files by its name, as where a checkpoint splits
        the weights of experts.
        """
        own = dict(self.network.named_parameters())
        saved = {name: p for name, p in read(folder, adapter=self.adapter) if name in own}
        whole = all(name in saved for name, one in own.items() if one.requires_grad)
        before = {name: own[name].detach().cpu().clone() for name in saved}
        try:
            put(own, saved)
            yield whole
        finally:
            put(own, before)


def save(
    network: nn.Module,
    folder: Path,
    *,
    adapter: bool,
    tensors: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a network, or its adapters alone; with these tensors in place of its own.

    Of any shape [...].
    """
    # "auto" would ask the hub whether the vocabulary grew.
    options = {"save_embedding_layers": False} if adapter else {}
    given = None if tensors is None else dict(tensors)
    network.save_pretrained(str(folder), state_dict=given, **options)


def as_in_files(network: nn.Module, own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Weights by the names that transformers writes, tied ones once, in the layout of the hub.

    Of any shape [...].
    """
    from transformers.core_model_loading import revert_weight_conversion
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    untied = remove_tied_weights_from_state_dict(dict(own), network)
    return revert_weight_conversion(network, untied)


def on_host(tensor: Tensor, whole: Tensor) -> Tensor:
    """A copy of a gathered tensor in host memory: a tensor gathered from shards is one already.

    Of any shape [...].
    """
    copy = whole is not tensor or tensor.device.type != "cpu"
    return whole.detach().cpu() if copy else whole.detach().clone()


def read(folder: Path, *, adapter: bool) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the files with the network's names. Of any shape [...]."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118, it is not a mapping
                yield (in_network(name) if adapter else name), tensors.get_tensor(name)


def in_network(name: str) -> str:
    """The network's name of an adapter weight: peft's files omit the name of the adapter."""
    layer, _, kind = name.rpartition(".")
    return f"{layer}.{ADAPTER}.{kind}"


@torch.no_grad()
def put(into: dict[str, nn.Parameter], tensors: dict[str, Tensor]) -> None:
    """Copy tensors into those of the same names. Of any shape [...]."""
    for name, tensor in tensors.items():
        into[name].copy_(tensor)
