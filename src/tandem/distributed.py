"""Collectives over ranks; with one rank every function here is the identity.

Pure functions never know of ranks: `with_all_rows` hands them the rows of all ranks and gives each
rank its own rows of the answer.
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

# Of a process among those of its run: all three are 0 for the first one alone. torchrun tells RANK,
# Lightning the other two.
PLACES = ("RANK", "NODE_RANK", "LOCAL_RANK")
CLOSE = 1e-4  # of a checksum, below which two of them are rounded alike


class Elsewhere(tuple):
    """Texts, pictures and prompts of the rows of all ranks. They do not travel: whoever looks at
    them would see none, and give every row the number of nothing."""

    __slots__ = ()

    def _refuse(self, *_: object) -> NoReturn:
        raise Stop(
            "outputs and prompts of rows stay on their rank, and here the rows of all ranks are "
            "compared, by tensors alone; let a reward look at them, weight=0 and Scores.named "
            "give its number, or train on one rank: trainer.devices=1"
        )

    __len__ = __iter__ = __getitem__ = __contains__ = __bool__ = _refuse


ELSEWHERE = Elsewhere()


def is_running(process: int) -> bool:
    """Whether this machine has a process of this id."""
    try:
        os.kill(process, 0)  # signal 0 only asks
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world_size() > 1 else 0


def is_first() -> bool:
    """Whether this process speaks and writes; also before the ranks know of each other."""
    return rank() == 0 and all(int(os.environ.get(name, 0)) == 0 for name in PLACES)


def with_all_rows(function: Callable[..., Tensor], *records: Record) -> Tensor:
    """`function` over the rows of all ranks; every rank gets its own rows of the result back.

    The records must start with a tensor field of B rows; tuples (texts, prompts) do not travel. It
    takes tensors [B, ...] and gives one. Raises Stop, on all ranks, if it depends on the rank.
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
    """Raise Stop for a result, of any shape [...], that another rank does not have."""
    values = result.detach().double().flatten()
    places = torch.arange(1, len(values) + 1, device=values.device)  # an order counts too
    total, size = values @ places.double(), values.abs() @ places.double()
    high, low, size = all_max(torch.stack([total, -total, size])).tolist()
    if high + low > CLOSE * size:
        raise Stop(
            "a function of the rows of all ranks (an advantage, weights or a statistic) has other "
            "values on another rank; let it depend on its arguments alone, and draw from the keys "
            "of rows: tandem.rng.uniform(rollout.key)"
        )


def gather(record: Record) -> Record:
    """The rows of all ranks in rank order. Shorter T are padded with 0 on the right."""
    if world_size() == 1:
        return record
    return map_fields(
        _numbers(record), lambda value: ELSEWHERE if isinstance(value, tuple) else _gather(value)
    )


def group_of_threads() -> dist.ProcessGroup | None:
    """A group for threads beside the one that trains, which meet in an order of their own, and
    wait as long as it does. All ranks make it together; None: there is one rank."""
    if world_size() == 1:
        return None
    home = "cuda" if dist.get_backend() == "nccl" else "cpu"
    options = dist.group.WORLD._get_backend(torch.device(home)).options
    return dist.new_group(backend="gloo", timeout=options._timeout)


def all_gather_object(own: list, group: dist.ProcessGroup | None = None) -> list:
    """The things of all ranks in rank order, of whatever kind: slow, for a few of them."""
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
    """All of a tensor that is cut over ranks, which meet here; any other one as it is.

    Of any shape [...].
    """
    return value.full_tensor() if is_sharded(value) else value


def part_of_this_rank(value: Tensor) -> tuple[Tensor, int]:
    """Of a tensor that is cut over ranks by rows: the rows that lie here, and the first row.

    Of any shape [...].
    """
    (placement,) = value.placements
    assert placement.is_shard(0), placement
    rows, ranks = value.shape[0], value.device_mesh.size()
    first = min(value.device_mesh.get_local_rank() * -(-rows // ranks), rows)
    return value.to_local(), first


def gather_on_first(value: Tensor) -> Tensor | None:
    """The same on the first rank, where it will be written, on its CPU if it was cut; else None.

    Of any shape [...].
    """
    found = full_tensor(value)
    if rank() != 0:
        return None
    return found.cpu() if is_sharded(value) else found


def shard_like(present: Tensor, value: Tensor) -> Tensor:
    """This rank's part of what all ranks have whole, if what is there now is cut; else all.

    `value` has the whole shape [...] of `present`.
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
    """The tensor where the backend can reach it: NCCL knows GPUs only."""
    return value.cuda() if dist.get_backend() == "nccl" else value


def _narrow(result: Tensor, records: tuple[Record, ...]) -> Tensor:
    """Drop the steps that other ranks' longer samples added."""
    masks = [getattr(record, "mask", record) for record in records]
    widths = [mask.shape[1] for mask in masks if isinstance(mask, Tensor) and mask.ndim == 2]
    return result[:, : widths[0]] if widths and result.ndim == 2 else result
