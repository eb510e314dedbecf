"""Options of `tandem engines`: the servers of a run, and the GPUs that each of them gets."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass

from tandem.config import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"
LAST_PORT = 65535
UUIDS = ("GPU-", "MIG-")  # beginnings of the names that CUDA_VISIBLE_DEVICES may have


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The servers of a run, and how they are supervised."""

    gpus: str
    tensor_parallel: int = 1
    host: str = "127.0.0.1"
    port: int = 8000
    restarts: int = 3
    startup: float = 1200.0
    program: str | None = None
    flags: str = ""

    def __post_init__(self) -> None:
        limits = {
            f"tensor_parallel={self.tensor_parallel}: must be 1 or more": self.tensor_parallel >= 1,
            f"port={self.port}: must be between 0 and {LAST_PORT}": 0 <= self.port <= LAST_PORT,
            f"restarts={self.restarts}: must be 0 or more": self.restarts >= 0,
            f"startup={self.startup}: must be above 0": self.startup > 0,
        }
        for wrong, holds in limits.items():
            if not holds:
                raise ConfigError(wrong)

    @property
    def devices(self) -> list[tuple[str, ...]]:
        """The GPUs of each server; none: the CPU. Raises ConfigError."""
        from tandem.policies.engines.serving import CPU  # imports torch

        kind, _, count = self.gpus.partition(":")
        count = count or "1"
        if kind == CPU and count.isdigit() and int(count) and self.tensor_parallel == 1:
            return [()] * int(count)
        parts = [_spread(part.strip()) for part in self.gpus.split(",")]
        numbers = [number for part in parts for number in part]
        is_distinct = len(set(numbers)) == len(numbers)
        if not all(parts) or not is_distinct or len(numbers) % self.tensor_parallel:
            raise ConfigError(
                f"gpus={self.gpus}: expected distinct GPU numbers such as 4-7 or 0,2, in a "
                f"multiple of tensor_parallel={self.tensor_parallel}, or cpu:2"
            )
        size = self.tensor_parallel
        return [tuple(numbers[i : i + size]) for i in range(0, len(numbers), size)]

    def describe_hidden(self) -> str:
        """A warning of GPUs that the run's own shell hides, as they may be somebody else's; "" for
        none. Numbers are those of nvidia-smi, whatever CUDA_VISIBLE_DEVICES says."""
        seen = os.environ.get(VISIBLE)
        asked = [number for server in self.devices for number in server]
        visible = asked if seen is None else [name.strip() for name in seen.split(",")]
        hidden = [number for number in asked if number not in visible]
        if not hidden:
            return ""
        return (
            f"gpus={self.gpus} counts as nvidia-smi does, and {VISIBLE}={seen} leaves out "
            f"{','.join(hidden)}; they are used all the same"
        )

    @property
    def words(self) -> list[str]:
        """The words of `flags`, as a shell splits them. Raises ConfigError."""
        try:
            return shlex.split(self.flags)
        except ValueError as error:
            raise ConfigError(
                f"flags={self.flags}: {error}; quote the flags as for a shell"
            ) from None


def _spread(part: str) -> list[str]:
    """4-7 -> 4, 5, 6, 7, and a UUID itself; empty for anything else."""
    if part.startswith(UUIDS):
        return [part]
    first, dash, last = part.partition("-")
    last = last if dash else first
    if not first.isdigit() or not last.isdigit():
        return []
    return [str(number) for number in range(int(first), int(last) + 1)]
