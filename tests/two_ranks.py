"""Jobs on two processes with a process group, as torchrun would start them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
from processes import FORKED
from torch import distributed, multiprocessing

RANKS = 2
LIMIT = timedelta(minutes=2)  # that a rank waits for the other before it fails
Job = Callable[[], Any]  # its result is pickled; defined in a module, with its arguments bound


def on_two_ranks(jobs: Mapping[str, Job]) -> dict[tuple[int, str], Any]:
    """(rank, name) -> the result of the job of that name there; one pair of processes for all."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with FORKED.Manager() as manager:
        result = manager.dict()
        multiprocessing.start_processes(
            _on_rank, (port, jobs, result), nprocs=RANKS, start_method=FORKED.get_start_method()
        )
        return dict(result)


def on_both(job: Job) -> list[Any]:
    """The result of one job on each rank."""
    found = on_two_ranks({"job": job})
    return [found[rank, "job"] for rank in range(RANKS)]


def _on_rank(rank: int, port: int, jobs: Mapping[str, Job], result: dict) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "here",
        "RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0",
        "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS),
    }  # fmt: skip
    distributed.init_process_group("gloo", rank=rank, world_size=RANKS, timeout=LIMIT)
    for name, job in jobs.items():
        result[rank, name] = job()
        distributed.barrier()
    distributed.destroy_process_group()
