"""Engines that a run starts on its own devices: `rollout=vllm_colocated`."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from omegaconf import DictConfig

from tandem import distributed
from tandem.config import ConfigError, build
from tandem.config.refusals import refusing
from tandem.launch.engine_options import Servers
from tandem.launch.engine_plan import plan
from tandem.launch.engine_processes import POLL, Watcher
from tandem.policies.engines.addresses import AddressFile
from tandem.policies.engines.serving import CPU
from tandem.record.terminal import line, say
from tandem.settings.settings import Devices
from tandem.stop import EngineUnavailable

log = logging.getLogger(__name__)

STARTUP, RESTARTS = 1200.0, 3  # the defaults of `tandem engines`


@contextmanager
def own_engines(cfg: DictConfig, trainer: Devices) -> Iterator[None]:
    """Run engines during the block, if the run starts its own. The first rank starts them all."""
    option = build(cfg.rollout).engine
    if option is None or not option.starts or not distributed.is_first():
        yield
        return
    if trainer.num_nodes > 1:
        raise ConfigError(
            f"trainer.num_nodes={trainer.num_nodes}: a run starts engines on one node only; run "
            "`tandem engines` on each node, and set rollout.engine.starts=false; give all of them "
            "the same rollout.engine.folder"
        )
    with refusing():
        servers, folder = plan(Servers(gpus=devices_of(trainer), port=0), cfg)
    addresses = AddressFile(folder=folder, urls=[server.url for server in servers])
    addresses.write(ready=False)
    watcher = Watcher(
        servers=servers,
        startup=STARTUP,
        restarts=RESTARTS,
        say=lambda text: say(line("engines", text)),
    )
    ended = threading.Event()
    # Servers end with the thread that started them, which must live as long as this block.
    thread = threading.Thread(target=_watch, args=(watcher, addresses, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def devices_of(trainer: Devices) -> str:
    """One server per device of the run, in the form of `tandem engines gpus=`."""
    if trainer.accelerator == "cpu" or not torch.cuda.is_available():
        return CPU
    count = torch.cuda.device_count()
    # The run counts the GPUs that it sees; a server sees what its own variable names.
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    return ",".join(seen[number].strip() for number in trainer.indices(count))


def _watch(watcher: Watcher, addresses: AddressFile, ended: threading.Event) -> None:
    """Supervise servers until the run has ended. Its ranks read in the address file why they have
    none; where the servers end later, they get an error when they request rows."""
    try:
        _supervise(watcher, addresses, ended)
    except (EngineUnavailable, OSError) as error:
        log.error("%s", error)
        addresses.write(ready=False, fault=str(error))
        time.sleep(2 * POLL)  # every rank looks once, even if the first one ends at once
    finally:
        watcher.stop()
        while not ended.wait(POLL):
            addresses.touch()
        addresses.remove()


def _supervise(watcher: Watcher, addresses: AddressFile, ended: threading.Event) -> None:
    watcher.start()
    ready = False
    while not ended.wait(POLL):
        watcher.look()
        addresses.touch()
        if not ready and watcher.up == len(watcher.servers):
            ready = True
            addresses.write(ready=True)
    addresses.remove()  # before they end
