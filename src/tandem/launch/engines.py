"""Start the engines of a run, and watch them: `tandem engines model=... gpus=4-7`."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from tandem.config import ConfigError
from tandem.config.refusals import refusals, refusing
from tandem.launch.engine_options import Servers
from tandem.launch.engine_processes import POLL, Watcher
from tandem.stop import STOPPED, EngineUnavailable, code_of, keep_exit_code, list_heard

if TYPE_CHECKING:
    from tandem.policies.engines.addresses import AddressFile

TOLD = 15.0  # seconds between two lines while servers start
HELP = """\
Start and supervise the engines of a run: tandem engines gpus=... OVERRIDES OF THE RUN

Examples:
  tandem engines gpus=4-7 model=hf model.path=FOLDER
  tandem engines gpus=0,1 tensor_parallel=2 model=hf model.path=FOLDER model.lora.r=16
  tandem engines gpus=cpu:2 model=hf model.path=FOLDER rollout.max_new_tokens=64

Then: python train.py OVERRIDES OF THE RUN rollout=vllm_server rollout.engine.url=auto

Each server gets the flags that the run needs, from the same model, model.lora and rollout
(default: rollout=vllm_server). Once all servers respond, their addresses are written to
rollout.engine.folder, where url=auto finds them; several nodes may each run this command.
A server that exits is restarted. Ctrl-C, SIGTERM or SIGHUP stops all servers, with exit code
130, 143 or 129; a second signal kills them.

Keys:
{keys}
"""


KEYS = {
    "gpus": "4-7 or 0,2, as nvidia-smi counts: one server for each; cpu:2: two on the CPU",
    "tensor_parallel": "GPUs per server",
    "host": "address to listen on; for access from other nodes the name of this node",
    "port": "port of the first server; the next ones count up; 0: any free ports",
    "restarts": "restarts per server before all are stopped with exit code 3",
    "startup": "seconds within which a server must respond",
    "program": "path of the engine; default: in $VLLM_HOME/bin, beside this Python, or on PATH",
    "flags": "additional flags for every server, in quotes, split as a shell splits them",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Start the requested servers, and supervise them until told to stop."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if {"-h", "--help"} & set(words):
        print(make_help(), end="")
        return
    with refusals(), refusing():
        servers, overrides = read(words)
        from tandem.launch.engine_plan import compose_run, plan  # imports torch
        from tandem.policies.engines.addresses import AddressFile

        processes, folder = plan(servers, compose_run(overrides))
    if hidden := servers.describe_hidden():
        say(hidden)
    watcher = Watcher(
        servers=processes, startup=servers.startup, restarts=servers.restarts, say=say
    )
    addresses = AddressFile(folder=folder, urls=[process.url for process in processes])
    try:
        with interruptible(watcher):
            watch(watcher, addresses)
    except EngineUnavailable as error:
        print(f"stopped: {error}", file=sys.stderr)
        sys.exit(STOPPED)
    except OSError as error:
        given = f"program={processes[0].words[0]} and rollout.engine.folder={folder}"
        print(f"stopped: {error}; check {given}", file=sys.stderr)
        sys.exit(STOPPED)


def make_help() -> str:
    defaults = {field.name: field.default for field in fields(Servers)} | {"gpus": "???"}
    keys = "\n".join(f"  {f'{name}={defaults[name]}':<24} {what}" for name, what in KEYS.items())
    return HELP.format(keys=keys)


def read(words: Sequence[str]) -> tuple[Servers, list[str]]:
    """The servers, and the overrides of their run. Raises ConfigError."""
    own: dict[str, Any] = {}
    overrides = []
    kinds = {field.name: field.type for field in fields(Servers)}
    for word in words:
        name, given, value = word.partition("=")
        if name[:1] == "-":
            name = name.lstrip("-")
            raise ConfigError(f"{word}: write {name}={value or '...'}, without dashes")
        if name not in kinds or not given:
            overrides.append(word)
            continue
        convert = {"int": int, "float": float}.get(str(kinds[name]), str)
        try:
            own[name] = convert(value)
        except ValueError:
            raise ConfigError(f"{word}: expected a number") from None
    if "gpus" not in own:
        raise ConfigError("gpus is missing; give GPU numbers such as gpus=4-7, or gpus=cpu:2")
    return Servers(**own), overrides


def watch(watcher: Watcher, addresses: AddressFile) -> None:
    """Supervise servers until the process is told to stop. Raises EngineUnavailable."""
    begun = told = time.monotonic()
    try:
        addresses.write(ready=False)
        watcher.start()
        say(f"starting {len(watcher.servers)} servers; output in {watcher.servers[0].log}, ...")
        ready = False
        while True:
            watcher.look()
            addresses.touch()
            if not ready and watcher.up == len(watcher.servers):
                ready = True
                addresses.write(ready=True)
                say(f"all up: {','.join(addresses.urls)}\naddresses in {addresses.path}")
            if not ready and time.monotonic() - told > TOLD:
                told = time.monotonic()
                say(f"{watcher.up} of {len(watcher.servers)} up after {told - begun:.0f} s")
            time.sleep(POLL)
    except SystemExit:
        say("stopping all servers; another signal kills them")
        raise
    finally:
        addresses.remove()
        watcher.stop()


@contextmanager
def interruptible(watcher: Watcher) -> Iterator[None]:
    """A block that a signal ends with the exit code of `code_of`. The next signal no longer waits
    for the servers to end by themselves.

    SIGUSR1 is ignored, by the servers too: a scheduler sends it to all steps of a job as a warning,
    and the run still samples until it has ended.
    """

    def interrupt(number: int, _: FrameType | None) -> NoReturn:
        for one in ending:
            signal.signal(one, lambda *_: watcher.kill())
        keep_exit_code()
        raise SystemExit(code_of(number))

    ending = [one for one in list_heard() if one != signal.SIGUSR1]
    before = {one: signal.signal(one, interrupt) for one in ending}
    before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def say(text: str) -> None:
    print(text, flush=True)
