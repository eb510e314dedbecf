"""Decoding steps in tensors of fixed addresses and shapes, recorded as a CUDA graph.

A step of a model of 0.6B launches some thousand small kernels, which takes several times longer
than running them. A graph launches all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

DEVICES = {"cuda"}  # those with graphs
ROOM = 64  # columns of a recording at least
Forward = Callable[[Tensor, Tensor, Tensor], Tensor]  # (tokens, position, mask) -> logits [N, V]


def can_record(model: nn.Module) -> bool:
    """Whether a step of this model is the same sequence of kernels for every token, and takes a
    mask of the columns that are not yet written."""
    if not isinstance(model, PreTrainedModel):
        return False
    from torch.distributed.fsdp import FSDPModule  # takes most of a second

    return (
        model._can_compile_fullgraph  # what transformers itself asks before it records a step
        and model.config._attn_implementation == "sdpa"
        and not model._can_set_experts_implementation()  # some of them wait for the router
        and not isinstance(model, FSDPModule)  # its collectives wait on events of other streams
    )


class Recorder:
    """The decoding steps of a cache, recorded again when their columns are used up.

    It keeps no reference to the rows that keep it: the memory of a graph and of a cache is free as
    soon as they are.
    """

    def __init__(self, cache: Cache, most: int) -> None:
        """most: columns that will be needed."""
        self.cache, self.most = cache, most
        self.step: RecordedStep | None = None

    def advance(
        self, forward: Forward, token: Tensor, mask: Tensor | None, position: Tensor
    ) -> Tensor:
        """Logits behind one more token of each row: [N] int64 -> [N, V], valid until the next.

        mask: [N, K] int64 of the columns, None: all; position: [..., N, 1] of the next token. They
        are those of the rows at the beginning or after a stop.
        """
        if self.step is not None and self.step.known == self.step.width:
            mask, position = self.stop(mask, position)
        if self.step is None:
            known = self.cache.get_seq_length()
            # A recording takes as long as some ten steps, but attention reads all its columns.
            width = min(known + max(ROOM, known // 2), self.most)
            self.step = RecordedStep(self.cache, mask, position, width)
        return self.step(forward, token)

    def stop(self, mask: Tensor | None, position: Tensor) -> tuple[Tensor | None, Tensor]:
        """Leave the cache as if its columns had been appended; the present mask and position."""
        step, self.step = self.step, None
        if step is None:
            return mask, position
        for layer in self.cache.layers:
            layer.column = None
            layer.keys, layer.values = (room[:, :, : step.known] for room in layer.rooms)
        return None if mask is None else step.mask[:, 0, 0, : step.known].long(), step.position


class RecordedStep:
    """A step of N rows in a cache of W columns: run at its first token, recorded at its second."""

    def __init__(self, cache: Cache, mask: Tensor | None, position: Tensor, width: int) -> None:
        """mask: [N, K] int64 of the K columns that are written, None: all; position: [..., N, 1] of
        the next token; width: W."""
        self.known, self.width, device = cache.get_seq_length(), width, position.device
        self.position, rows = position.clone(), position.shape[-2]
        self.token = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self.mask = torch.zeros(rows, 1, 1, width, dtype=torch.bool, device=device)
        self.mask[..., : self.known] = True if mask is None else mask[:, None, None].bool()
        self.column = torch.full((1,), self.known, device=device)
        for layer in cache.layers:
            more = max(width - layer.rooms[0].shape[2], 0)
            layer.rooms = tuple(pad(room, (0, 0, 0, more))[:, :, :width] for room in layer.rooms)
            # They would keep the memory of the shorter rooms until the next stop.
            layer.keys, layer.values = (room[:, :, : self.known] for room in layer.rooms)
            layer.column = self.column
        self.replay: Callable[[], None] | None = None
        self.logits: Tensor | None = None

    def __call__(self, forward: Forward, token: Tensor) -> Tensor:
        """Logits behind one more token of each row: [N] int64 -> [N, V], valid until the next."""
        self.token.copy_(token[:, None])
        self.mask[..., self.known] = True
        given = self.token, self.position, self.mask
        if self.logits is None:
            self.logits = forward(*given)
        else:
            if self.replay is None:
                self.replay, self.logits = record(lambda: forward(*given))
            self.replay()
        for counter in (self.column, self.position):
            counter += 1
        self.known += 1
        return self.logits


def record(step: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """The replay of a step, and the tensor that it fills. Other threads may use the device
    meanwhile.

    Raises RuntimeError for a step that waits for the device.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            filled = step()
    except RuntimeError as error:
        raise RuntimeError(
            f"this model's decoding step cannot be recorded as a CUDA graph ({error}); "
            "set rollout.cuda_graphs=false"
        ) from error
    return graph.replay, filled
