"""Start the engines of a run, and watch them: `tandem engines model=... gpus=4-7`."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import FrameType
from typing import Any

from omegaconf import DictConfig, OmegaConf

from tandem.config import ConfigError, build, compose
from tandem.config.overrides import parse
from tandem.config.refusals import refusals
from tandem.launch.engine_processes import POLL, EngineProcess, Watcher
from tandem.launch.initial_weights import finished_model
from tandem.policies.engines.addresses import AUTO, AddressFile
from tandem.policies.engines.serving import CPU, Served, ServerOption
from tandem.policies.language.records import Sampling
from tandem.policies.lora import Lora
from tandem.stop import STOPPED, EngineUnavailable

TOLD = 15.0  # seconds between two lines while servers start
HELP = """\
Start the engines of a run, and watch them: tandem engines gpus=... OVERRIDES OF THE RUN

Examples:
  tandem engines gpus=4-7 model=hf model.path=FOLDER
  tandem engines gpus=0,1 tensor_parallel=2 model=hf model.path=FOLDER model.lora.r=16
  tandem engines gpus=cpu:2 model=hf model.path=FOLDER rollout.max_new_tokens=64

Then: python train.py OVERRIDES OF THE RUN rollout=vllm_server rollout.engine.url=auto

Each server is started with the flags that the run needs of it, out of the same model, model.lora
and rollout (rollout=vllm_server, unless another is given). Once all answer, their addresses stand
in rollout.engine.folder, where url=auto finds them, from several commands on several nodes, too.
A server that ends is started again. Ctrl-C or SIGTERM ends all of them.

Keys:
{keys}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Which servers there are, and how they are looked after."""

    gpus: str
    tensor_parallel: int = 1
    host: str = "127.0.0.1"
    port: int = 8000
    memory: float = 0.9
    restarts: int = 3
    startup: float = 1200.0
    program: str | None = None
    flags: str = ""

    def __post_init__(self) -> None:
        limits = {
            "tensor_parallel": (self.tensor_parallel >= 1, "1 or more"),
            "port": (0 < self.port < 1 << 16, "in 1 ... 65535"),
            "memory": (0 < self.memory <= 1, "above 0 and at most 1"),
            "restarts": (self.restarts >= 0, "0 or more"),
            "startup": (self.startup > 0, "above 0"),
        }
        for name, (holds, wanted) in limits.items():
            if not holds:
                raise ConfigError(f"{name}={getattr(self, name)}: must be {wanted}")

    @property
    def devices(self) -> list[tuple[str, ...]]:
        """The GPUs of each server; none: the CPU. Raises ConfigError."""
        kind, _, count = self.gpus.partition(":")
        if kind == CPU and (count or "1").isdigit() and self.tensor_parallel == 1:
            return [()] * int(count or 1)
        numbers = [number for part in self.gpus.split(",") for number in _spread(part)]
        if not numbers or len(set(numbers)) < len(numbers) or len(numbers) % self.tensor_parallel:
            raise ConfigError(
                f"gpus={self.gpus}: expected numbers such as 4-7 or 0,2, each once and a multiple "
                f"of tensor_parallel={self.tensor_parallel} of them, or cpu:2"
            )
        size = self.tensor_parallel
        return [tuple(numbers[i : i + size]) for i in range(0, len(numbers), size)]


def _spread(part: str) -> list[str]:
    """4-7 -> 4, 5, 6, 7; nothing of what is no number."""
    first, _, last = part.partition("-")
    if not first.isdigit() or not (last or "0").isdigit():
        return []
    return [str(number) for number in range(int(first), int(last or first) + 1)]


KEYS = {
    "gpus": "4-7, or 0,2: one server for each; or cpu:2, two servers on the CPU",
    "tensor_parallel": "GPUs of one server",
    "host": "address to listen at; of a node that others reach: its name",
    "port": "of the first server; the next ones count up",
    "memory": "share of each GPU's memory that a server takes",
    "restarts": "of each server, before all are ended with exit code 3",
    "startup": "seconds that a server may take until it answers",
    "program": "path of the engine; none: $VLLM_HOME/bin, beside this Python, or the PATH",
    "flags": "more flags for every server, in quotes",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Start what a command line asks for, and watch it until it is told to stop."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or {"-h", "--help"} & set(words):
        print(make_help(), end="")
        return
    with refusals():
        servers, overrides = read(words)
        processes, folder = plan(servers, compose_run(overrides))
    watcher = Watcher(
        servers=processes, startup=servers.startup, restarts=servers.restarts, say=say
    )
    addresses = AddressFile(folder=folder, urls=[process.url for process in processes])
    try:
        with interruptible():
            watch(watcher, addresses)
    except EngineUnavailable as error:
        print(f"stopped: {error}", file=sys.stderr)
        sys.exit(STOPPED)


def make_help() -> str:
    defaults = {field.name: field.default for field in fields(Servers)} | {"gpus": "???"}
    keys = "\n".join(f"  {f'{name}={defaults[name]}':<24} {what}" for name, what in KEYS.items())
    return HELP.format(keys=keys)


def read(words: Sequence[str]) -> tuple[Servers, list[str]]:
    """The servers, and the overrides of the run that they are for. Raises ConfigError."""
    own: dict[str, Any] = {}
    overrides = []
    kinds = {field.name: field.type for field in fields(Servers)}
    for word in words:
        name, given, value = word.partition("=")
        if name not in kinds or not given:
            overrides.append(word)
            continue
        convert = {"int": int, "float": float}.get(str(kinds[name]), str)
        try:
            own[name] = convert(value)
        except ValueError:
            raise ConfigError(f"{word}: expected a number") from None
    if "gpus" not in own:
        raise ConfigError("gpus is missing: give numbers such as gpus=4-7, or gpus=cpu:2")
    return Servers(**own), overrides


def compose_run(overrides: Sequence[str]) -> DictConfig:
    """The run whose engines are to be started. Raises ConfigError."""
    chosen = any(part.key_or_group == "rollout" for part in parse(overrides))
    cfg = compose([*([] if chosen else ["rollout=vllm_server"]), *overrides])
    if cfg.rollout.get("engine") is not None and OmegaConf.is_missing(cfg.rollout.engine, "url"):
        cfg.rollout.engine.url = AUTO
    return cfg


def plan(servers: Servers, cfg: DictConfig) -> tuple[list[EngineProcess], Path]:
    """The servers to be started, and the folder for their addresses. Raises ConfigError."""
    sampling = build(cfg.rollout)
    option = sampling.engine if isinstance(sampling, Sampling) else None
    if not isinstance(option, ServerOption):
        raise ConfigError("this rollout asks no server; set rollout=vllm_server")
    lora = None if cfg.model.get("lora") is None else Lora(**cfg.model.lora)
    program, folder = find_program(servers, option), Path(option.folder).expanduser()
    path, dtype = model_of(cfg, lora), str(cfg.model.dtype)
    processes = []
    for place, devices in enumerate(servers.devices):
        served = Served(
            path=path,
            dtype="bfloat16" if cfg.trainer.precision == "bf16-mixed" else dtype,
            host=servers.host,
            port=servers.port + place,
            devices=devices,
            memory=servers.memory,
        )
        command = option.command(served, sampling, lora)
        processes.append(
            EngineProcess(
                words=[program, *command.words, *servers.flags.split()],
                environment=command.environment,
                url=served.url,
                log=folder / f"server-{os.getpid()}-{place}.log",
            )
        )
    return processes, folder


def find_program(servers: Servers, option: ServerOption) -> str:
    """Where the engine is installed. Raises ConfigError where it is not."""
    if servers.program is not None:
        return servers.program
    homes = [os.environ.get(f"{option.program.upper()}_HOME", ""), str(Path(sys.prefix))]
    places = os.pathsep.join([f"{home}/bin" for home in homes if home])
    found = shutil.which(option.program, path=places) or shutil.which(option.program)
    if found is None:
        raise ConfigError(
            f"{option.program} is not installed here; give program=ENVIRONMENT/bin/{option.program}"
        )
    return found


def model_of(cfg: DictConfig, lora: Lora | None) -> str:
    """What is served: the weights that the run starts from. Raises ConfigError."""
    if cfg.continue_from is not None:
        return str(finished_model(Path(cfg.continue_from)))
    if cfg.warm_start is not None and lora is not None:
        raise ConfigError(
            "warm_start: its weights are there once it was trained, and adapters alone are handed "
            "over; train it first, then give continue_from=RUN here and to the run"
        )
    if cfg.model.path is None:
        raise ConfigError("model.path is null: engines serve a folder, or a name on the hub")
    return str(cfg.model.path)


def watch(watcher: Watcher, addresses: AddressFile) -> None:
    """Until the process is told to stop. Raises EngineUnavailable."""
    begun = told = time.monotonic()
    try:
        addresses.write(ready=False)
        watcher.start()
        say(f"starting {len(watcher.servers)} servers; their output: {watcher.servers[0].log}, ...")
        ready = False
        while True:
            watcher.look()
            if not ready and watcher.up == len(watcher.servers):
                ready = True
                addresses.write(ready=True)
                say(f"all up: {','.join(addresses.urls)}\naddresses in {addresses.path}")
            if not ready and time.monotonic() - told > TOLD:
                told = time.monotonic()
                say(f"{watcher.up} of {len(watcher.servers)} up after {told - begun:.0f} s")
            time.sleep(POLL)
    except KeyboardInterrupt:
        say("ending all servers")
    finally:
        addresses.remove()
        watcher.stop()


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM, SIGHUP and Ctrl-C end the block alike, once."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        for one in SIGNALS:  # what ends the servers is not interrupted
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {one: signal.signal(one, interrupt) for one in SIGNALS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def say(text: str) -> None:
    print(text, flush=True)
