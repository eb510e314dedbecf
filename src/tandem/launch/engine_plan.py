"""Plans of engines: the servers of a run, their devices and their command lines."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from tandem.config import ConfigError, build, compose
from tandem.config.overrides import parse
from tandem.launch.engine_options import LAST_PORT, Servers
from tandem.launch.engine_processes import EngineProcess
from tandem.launch.finished_runs import finished_model
from tandem.policies.engines.addresses import AUTO
from tandem.policies.engines.serving import Served, ServerOption
from tandem.policies.lora import Lora
from tandem.remote.transport import free_port


def compose_run(overrides: Sequence[str]) -> DictConfig:
    """The run that needs the engines. Raises ConfigError."""
    chosen = any(part.key_or_group == "rollout" for part in parse(overrides))
    cfg = compose([*([] if chosen else ["rollout=vllm_server"]), *overrides])
    if cfg.rollout.get("engine") is not None and OmegaConf.is_missing(cfg.rollout.engine, "url"):
        cfg.rollout.engine.url = AUTO
    return cfg


def plan(servers: Servers, cfg: DictConfig) -> tuple[list[EngineProcess], Path]:
    """The servers to start, and the folder for their addresses. Raises ConfigError."""
    sampling = build(cfg.rollout)
    option = sampling.engine
    if not isinstance(option, ServerOption):
        raise ConfigError("this rollout uses no server; set rollout=vllm_server")
    world = build(cfg.environment)
    if world and world.max_turns > 1:  # a history of moves may be as long as the model can read
        sampling = replace(sampling, max_prompt_tokens=None)
    lora = None if cfg.model.get("lora") is None else Lora(**cfg.model.lora)
    devices_of_servers, flags, folder = servers.devices, servers.words, option.writes_to
    if (last := servers.port + len(devices_of_servers) - 1) > LAST_PORT:
        count = len(devices_of_servers)
        raise ConfigError(
            f"port={servers.port}: {count} servers need ports up to {last}, and the last one is "
            f"{LAST_PORT}; set a smaller one"
        )
    path, dtype = model_of(cfg, lora), str(cfg.model.dtype)
    program = find_program(servers, option)  # last, after all that the command line says
    processes = []
    for place, devices in enumerate(devices_of_servers):
        served = Served(
            path=path,
            dtype="bfloat16" if cfg.trainer.precision == "bf16-mixed" else dtype,
            host=servers.host,
            port=servers.port + place if servers.port else free_port(),
            devices=devices,
        )
        command = option.command(served, sampling, lora)
        processes.append(
            EngineProcess(
                words=[program, *command.words, *flags],
                environment=command.environment,
                url=served.url,
                log=folder / f"server-{os.getpid()}-{place}.log",
            )
        )
    return processes, folder


def find_program(servers: Servers, option: ServerOption) -> str:
    """The path of the engine's program. Raises ConfigError if it is not installed."""
    if servers.program is not None:
        return servers.program
    homes = [os.environ.get(f"{option.program.upper()}_HOME", ""), str(Path(sys.prefix))]
    places = os.pathsep.join([f"{home}/bin" for home in homes if home])
    found = shutil.which(option.program, path=places) or shutil.which(option.program)
    if found is None:
        raise ConfigError(
            f"{option.program} is not installed here; set {option.program.upper()}_HOME to its "
            f"environment, or give tandem engines program=PATH"
        )
    return found


def model_of(cfg: DictConfig, lora: Lora | None) -> str:
    """The model to serve: the initial weights of the run. Raises ConfigError."""
    if cfg.continue_from is not None:
        return str(finished_model(Path(cfg.continue_from)))
    if cfg.warm_start is not None and lora is not None:
        raise ConfigError(
            "warm_start: engines need its weights before they start, and later receive only "
            "adapters; train it first, then set continue_from=RUN here and for the run"
        )
    if cfg.model.path is None:
        raise ConfigError(
            "model.path=null: engines serve a model; set it to a folder or a hub name"
        )
    path = str(cfg.model.path)
    place = os.path.expanduser(path)  # an engine expands no ~
    return place if os.path.isdir(place) else path
