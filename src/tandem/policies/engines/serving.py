"""Engine servers that `tandem engines` starts: their model, their address, their command line."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tandem.contracts.parts import expand_home
from tandem.policies.engines.protocol import EngineOption
from tandem.policies.language.records import Sampling
from tandem.policies.lora import Lora

CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model on the devices of one server."""

    path: str  # a folder in Hugging Face format, or a name on the hub
    dtype: str  # float32, bfloat16 or auto
    host: str
    port: int
    devices: Sequence[str]  # numbers of GPUs; empty: the CPU

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The command line of a server: `words` follow the program."""

    words: Sequence[str]
    environment: Mapping[str, str]


class ServerOption(EngineOption):
    """An engine whose servers `tandem engines` can start; a plugin can be one."""

    program: str  # the executable, such as vllm
    folder: str  # where the addresses of its servers are written for `rollout.engine.url=auto`
    url: str | Sequence[str]

    @property
    def writes_to(self) -> Path:
        return expand_home(self.folder)

    @abstractmethod
    def command(self, served: Served, sampling: Sampling, lora: Lora | None) -> Command:
        """The command with all options this client needs; `GET /health` answers 200 once it is up.

        Raises ValueError for what no server can do.
        """
