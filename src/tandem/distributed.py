"""Collectives over ranks; with one rank every function here is the identity.

Pure functions never depend on ranks: `with_all_rows` calls them with the rows of all ranks and
returns to each rank its own rows of the result.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

import torch
from torch import Tensor
from torch import distributed as dist

from tandem.stop import Stop
from tandem.types import Record, Rollout, Scores, map_fields, pad_steps

# Environment variables that place a process in its run; all are 0 only for the first process.
# torchrun sets RANK, Lightning the other two.
PLACES = ("RANK", "NODE_RANK", "LOCAL_RANK")
CLOSE = 1e-4  # relative difference of checksums that rounding explains


class Elsewhere(tuple):
    """Placeholder for the texts, images and prompts of other ranks' rows, which are not gathered.

    Reading it raises Stop: a component would otherwise see empty outputs for every row."""

    __slots__ = ()

    def _refuse(self, *_: object) -> NoReturn:
        raise Stop(
            "outputs and prompts stay on their rank, and here the rows of all ranks are compared, "
            "by tensors alone; read them in a reward (weight=0, read by Scores.reward) or train on "
            "one rank: trainer.devices=1"
        )

    __len__ = __iter__ = __getitem__ = __contains__ = __bool__ = _refuse


ELSEWHERE = Elsewhere()


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world_size() > 1 else 0


def local_rank() -> int:
    """The number of this process on its node; valid before the process group exists."""
    return int(os.environ.get("LOCAL_RANK", 0))


def is_first() -> bool:
    """Whether this process prints and writes files; valid before the process group exists."""
    return rank() == 0 and all(int(os.environ.get(name, 0)) == 0 for name in PLACES)


def with_all_rows(function: Callable[..., Tensor], *records: Record) -> Tensor:
    """`function` of the rows of all ranks; every rank gets its own rows of the result.

    The records must start with a tensor field of B rows; tuples (texts, prompts) are not gathered.
    `function` takes and returns tensors [B, ...]. Raises Stop on all ranks if the result depends on
    the rank.
    """
    if world_size() == 1:
        return function(*records)
    own = count_rows(records[0])
    counts = gather(torch.tensor([own])).tolist()
    start = sum(counts[: rank()])
    result = function(*(gather(record) for record in records))
    _refuse_unlike(result)
    return _narrow(result[start : start + own], records)


def _refuse_unlike(result: Tensor) -> None:
    """Raise Stop for a result, of any shape [...], that differs between ranks."""
    values = result.detach().double().flatten()
    # Weighted by place, so that the order of the values matters.
    places = torch.arange(1, len(values) + 1, device=values.device)
    total, size = values @ places.double(), values.abs() @ places.double()
    high, low, size = all_max(torch.stack([total, -total, size])).tolist()
    if high + low > CLOSE * size:
        raise Stop(
            "a function of the rows of all ranks (an advantage, weights or a statistic) differs "
            "between ranks; let it depend on its arguments alone, and draw from the keys of rows: "
            "tandem.rng.uniform(rollout.key)"
        )


def gather(record: Record) -> Record:
    """The rows of all ranks in rank order, padded with 0 on the right to the longest T."""
    if world_size() == 1:
        return record
    return map_fields(
        _numbers(record), lambda value: ELSEWHERE if isinstance(value, tuple) else _gather(value)
    )


def group_of_threads() -> dist.ProcessGroup | None:
    """A process group for background threads, whose collectives run in an order of their own, with
    the timeout of the main group. All ranks create it together; None with one rank."""
    if world_size() == 1:
        return None
    home = "cuda" if dist.get_backend() == "nccl" else "cpu"
    options = dist.group.WORLD._get_backend(torch.device(home)).options
    return dist.new_group(backend="gloo", timeout=options._timeout)


def all_gather_object(own: list, group: dist.ProcessGroup | None = None) -> list:
    """The picklable objects of all ranks in rank order. Slow: for a few small objects."""
    if world_size() == 1:
        return own
    parts: list[list] = [[] for _ in range(world_size())]
    dist.all_gather_object(parts, own, group=group)
    return [thing for part in parts for thing in part]


def all_sum(value: Tensor) -> Tensor:
    """Sum over ranks. Of any shape [...]."""
    return value if world_size() == 1 else _reduce(value, dist.ReduceOp.SUM)


def all_max(value: Tensor) -> Tensor:
    """Maximum over ranks. Of any shape [...]."""
    return value if world_size() == 1 else _reduce(value, dist.ReduceOp.MAX)


def is_sharded(value: Tensor) -> bool:
    """Whether each rank holds a part of it (a DTensor). Of any shape [...]."""
    if not (dist.is_available() and dist.is_initialized()):
        return False
    from torch.distributed.tensor import DTensor  # takes most of a second

    return isinstance(value, DTensor)


def full_tensor(value: Tensor) -> Tensor:
    """The whole of a sharded tensor, gathered by all ranks; any other tensor unchanged.

    Of any shape [...].
    """
    return value.full_tensor() if is_sharded(value) else value


def part_of_this_rank(value: Tensor) -> tuple[Tensor, int]:
    """This rank's rows of a tensor that is sharded by rows, and the index of the first of them.

    Of any shape [...].
    """
    (placement,) = value.placements
    assert placement.is_shard(0), placement
    rows, ranks = value.shape[0], value.device_mesh.size()
    first = min(value.device_mesh.get_local_rank() * -(-rows // ranks), rows)
    return value.to_local(), first


def gather_on_first(value: Tensor) -> Tensor | None:
    """The full tensor on the first rank, on the CPU if it was sharded; None on other ranks.

    Of any shape [...].
    """
    found = full_tensor(value)
    if rank() != 0:
        return None
    return found.cpu() if is_sharded(value) else found


def shard_like(present: Tensor, value: Tensor) -> Tensor:
    """`value` sharded as `present` is, without communication; unchanged if `present` is whole.

    All ranks have the same `value`, of the full shape [...] of `present`.
    """
    if not is_sharded(present):
        return value
    from torch.distributed.tensor import distribute_tensor

    here = value.to(present.device)
    return distribute_tensor(here, present.device_mesh, present.placements, src_data_rank=None)


def count_rows(record: Record) -> int:
    """B of a tensor or a record."""
    if isinstance(record, Tensor):
        return len(record)
    return len(record.total) if isinstance(record, Scores) else len(record.mask)


def _numbers(record: Record) -> Record:
    return (
        replace(record, sample=None, outputs=ELSEWHERE, prompts=ELSEWHERE)
        if isinstance(record, Rollout)
        else record
    )


def _gather(value: Tensor) -> Tensor:
    home, value = value.device, _to_backend(value)
    sizes = _all_gather(torch.tensor([*value.shape, 1][:2], device=value.device))
    rows, steps = (int(n) for n in torch.stack(sizes).amax(0))
    sent = value.to(torch.uint8) if value.dtype == torch.bool else value
    if value.ndim == 2:
        sent = pad_steps(sent, steps)
    padded = sent.new_zeros(rows, *sent.shape[1:])
    padded[: len(sent)] = sent
    parts = [part[: int(size[0])] for part, size in zip(_all_gather(padded), sizes, strict=True)]
    return torch.cat(parts).to(home, value.dtype)


def _all_gather(value: Tensor) -> list[Tensor]:
    parts = [torch.empty_like(value) for _ in range(world_size())]
    dist.all_gather(parts, value.contiguous())
    return parts


def _reduce(value: Tensor, operation: dist.ReduceOp) -> Tensor:
    sent = _to_backend(value).clone()
    dist.all_reduce(sent, operation)
    return sent.to(value.device)


def _to_backend(value: Tensor) -> Tensor:
    """The tensor on a device of the backend: NCCL needs a GPU."""
    return value.cuda() if dist.get_backend() == "nccl" else value


def _narrow(result: Tensor, records: tuple[Record, ...]) -> Tensor:
    """Drop the padding for longer samples of other ranks."""
    masks = [getattr(record, "mask", record) for record in records]
    widths = [mask.shape[1] for mask in masks if isinstance(mask, Tensor) and mask.ndim == 2]
    return result[:, : widths[0]] if widths and result.ndim == 2 else result
