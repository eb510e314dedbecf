"""The user's list of trusted modules to import, programs to start, hosts to ask, variables to send.

What a run directory or a file names is not believed. What a run used that this user started is kept
in trusted.json, in his configuration folder, so that his own runs go on without a word.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hydra.core.override_parser.types import Override

from tandem.config.names import ConfigError
from tandem.config.overrides import parse
from tandem.record import durable
from tandem.remote.transport import LOOPBACK

SAID_VARIABLES: set[str] = set()  # on command lines of this process, as are the next ones
SAID_HOSTS: set[str] = set()  # as scheme://host:port
SAID_STARTS: set[str] = set()  # true, where a command line lets a run start its engines
SAID_COMMANDS: set[str] = set()  # of programs
PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trusted:
    """The hosts, variables, plugins, engines and programs of runs that this user started."""

    plugins: dict[str, str] = field(default_factory=dict)  # path -> sha256 of what is imported
    # scheme://host:port -> variables that were sent there
    hosts: dict[str, list[str]] = field(default_factory=dict)
    engines: list[str] = field(default_factory=list)  # that were started: the option and the model
    programs: list[str] = field(default_factory=list)  # that were started: their commands


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A server that a configuration names."""

    key: str
    host: str  # scheme://host:port; "": its address stands elsewhere
    variable: str | None  # what is sent to it; None: nothing is set


def place() -> Path:
    """The file of what this user has confirmed."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "tandem" / "trusted.json"


def read_trusted() -> Trusted:
    """The hosts, variables and plugins that this user has confirmed so far. Raises ConfigError for
    a file that cannot be read."""
    path = place()
    if not path.is_file():
        return Trusted()
    try:
        return Trusted(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): remove it") from error


def remember(config: Mapping[str, object], plugins: Mapping[str, str]) -> None:
    """Keep what a run uses that was found to be trusted. `plugins`: path -> sha256."""
    path = place()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the runs of a sweep start together
        before = read_trusted()
        hosts = {host: list(names) for host, names in before.hosts.items()}
        for one in _list_elsewhere(config):
            if not one.host:  # who is asked is not known yet
                continue
            names = hosts.setdefault(one.host, [])
            if one.variable is not None and one.variable not in names:
                names.append(one.variable)
        engines = sorted({*before.engines, *_list_started(config)})
        programs = sorted({*before.programs, *dict(_list_commands(config, "")).values()})
        plugins = {**before.plugins, **plugins}
        now = Trusted(plugins=plugins, hosts=hosts, engines=engines, programs=programs)
        if now != before:
            durable.replace(path, json.dumps(asdict(now), indent=1).encode())


def believe(parts: Sequence[Override]) -> None:
    """The variables and the hosts that a command line names; of a sweep, each run says its own."""
    for part in parts:
        if not part.is_delete() and not part.is_sweep_override():
            _believe(part.key_or_group.rpartition(".")[2], part.value())


def _believe(name: str, value: object) -> None:
    if isinstance(value, Mapping):
        for inner, item in value.items():
            _believe(str(inner), item)
    elif name == "warm_start" and isinstance(value, list):
        believe(parse([str(word) for word in value]))
    elif name.endswith("_env"):
        SAID_VARIABLES.add(str(value))
    elif name == "url":
        SAID_HOSTS.update(_hosts(value))
    elif name == "starts" and value is True:
        SAID_STARTS.add("true")
    elif name == "command" and isinstance(value, list):
        SAID_COMMANDS.add(_spell(value))


def refuse_unsaid(config: Mapping[str, object], *, recorded: bool) -> None:
    """Raise where a variable would be sent to a host, and the user has named neither, and where a
    program would be started that he has not named.

    `recorded`: the configuration is that of a run; then it may ask no host that he has not named,
    and start no engine that he has not confirmed.
    """
    _refuse_programs(config)
    if recorded:
        _refuse_engines(config)
    known = read_trusted().hosts
    for one in _list_elsewhere(config):
        if one.host in SAID_HOSTS or one.variable in SAID_VARIABLES:
            continue
        sent = known.get(one.host, ()) if one.host else ()
        if one.variable is not None and one.variable not in sent:
            whole = f"{one.key}={one.variable}"
            raise ConfigError(
                f"{whole}: the variable would be sent to {one.host or 'a server'}, and you named "
                f"neither; give {whole} on the command line if that is right"
            )
        if recorded and one.host and one.host not in known:
            raise ConfigError(
                f"{one.key}: the run would ask {one.host}, which you have not named; give its "
                "address on the command line if that is right"
            )


def with_address(config: Mapping[str, Any], url: str) -> Mapping[str, Any]:
    """What is judged and kept of the engine once its address is found (`url=auto`)."""
    engine = config["rollout"]["engine"]
    return {"rollout": {"engine": {**engine, "url": url, "starts": False}}}


def _refuse_engines(config: Mapping[str, object]) -> None:
    started = set(_list_started(config)) - set(read_trusted().engines)
    if started and not SAID_STARTS:
        raise ConfigError(
            f"rollout.engine.starts: the run would start a program, {min(started)}, which no run "
            "of yours has started; give rollout.engine.starts=true on the command line if that is "
            "right"
        )


def _refuse_programs(config: Mapping[str, object]) -> None:
    known = {*read_trusted().programs, *SAID_COMMANDS}
    for key, command in _list_commands(config, ""):
        if command not in known:
            raise ConfigError(
                f"{key}: the run would start a program, {command}, which no run of yours has "
                f"started; give {key}=[...] on the command line if that is right"
            )


def _list_commands(node: object, where: str) -> Iterator[tuple[str, str]]:
    """Programs that parts of a configuration start: the key, and the command."""
    if isinstance(node, list):
        node = dict(enumerate(node))
    if not isinstance(node, Mapping):
        return
    if isinstance(node.get("command"), list):
        yield f"{where}command", _spell(node["command"])
    for key, item in node.items():
        yield from _list_commands(item, f"{where}{key}.")


def _spell(command: Sequence[object]) -> str:
    return shlex.join(map(str, command))


def _list_started(config: Mapping[str, object]) -> Iterator[str]:
    """The engine that a run starts for itself, with what it serves."""
    rollout, model = config.get("rollout"), config.get("model")
    engine = rollout.get("engine") if isinstance(rollout, Mapping) else None
    if isinstance(engine, Mapping) and engine.get("starts") not in (None, False):
        path = model.get("path") if isinstance(model, Mapping) else None
        served = config.get("continue_from") or path
        yield f"{engine.get('_target_')} of {served}"


def _list_elsewhere(config: Mapping[str, object]) -> Iterator[Asked]:
    """Those that are not this machine, and those here that would be sent a variable: whoever wrote
    the configuration may listen here too. A model's copy of its engine comes last."""
    found = sorted(_list_asked(config, ""), key=lambda one: one.key.startswith("model."))
    here = [one for one in found if urlsplit(one.host).hostname in LOOPBACK]
    return (one for one in found if one not in here or one.variable is not None)


def _list_asked(node: object, where: str) -> Iterator[Asked]:
    if isinstance(node, list):
        for place, item in enumerate(node):
            yield from _list_asked(item, f"{where}{place}.")
    if not isinstance(node, Mapping):
        return
    hosts = _hosts(node.get("url"))
    named = {str(key): name for key, name in node.items() if str(key).endswith("_env")}
    sent = {key: name for key, name in named.items() if name and os.environ.get(str(name))}
    for host in hosts or [""]:
        for key, name in sent.items():
            yield Asked(key=f"{where}{key}", host=host, variable=str(name))
        if host and not sent:
            yield Asked(key=f"{where}url", host=host, variable=None)
    for key, item in node.items():
        yield from _list_asked(item, f"{where}{key}.")


def _hosts(url: object) -> list[str]:
    """Those of one address, or of a list."""
    named = [_host(one) for one in (url if isinstance(url, list) else [url])]
    return [host for host in named if host]


def _host(url: object) -> str:
    """scheme://host:port, which is what somebody trusts: another port is another server."""
    if not isinstance(url, str):
        return ""
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme)
    except ValueError:
        return url
    named = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    own = "" if port == PORTS.get(parts.scheme) else f":{port}"
    return f"{parts.scheme}://{named}{own}" if named else ""


def digest(files: Sequence[Path]) -> str:
    """Of the bytes of these files, in their order."""
    found = hashlib.sha256()
    for file in files:
        found.update(hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()
