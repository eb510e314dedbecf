"""The user's list of trusted modules to import, programs to start, hosts to ask, variables to send.

What a run directory or a file names is not believed. What a run used that this user started is kept
in trusted.json, in his configuration folder, so that his own runs go on without a word.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override

from tandem.config.names import ConfigError
from tandem.config.overrides import parse
from tandem.config.programs import list_engines, list_programs, spell
from tandem.config.servers import hosts_of, list_elsewhere
from tandem.record import durable
from tandem.remote import is_address

# On command lines of this process, as are the next ones: to be sent to a server.
SAID_VARIABLES: set[str] = set()
SAID_KEPT: set[str] = set()  # variables that programs are given, and no server
SAID_HOSTS: set[str] = set()  # as scheme://host:port
SAID_STARTS: set[str] = set()  # true, where a command line lets a run start its engines
SAID_COMMANDS: set[str] = set()  # of programs


@dataclass(frozen=True, slots=True, kw_only=True)
class Trusted:
    """Of runs that this user started: hosts, variables, plugins, engines, programs and caches."""

    plugins: dict[str, str] = field(default_factory=dict)  # path -> sha256 of what is imported
    # scheme://host:port -> variables that were sent there
    hosts: dict[str, list[str]] = field(default_factory=dict)
    engines: list[str] = field(default_factory=list)  # that were started: the option and the model
    # that were started: a command and its folder, or a variable that it was given
    programs: list[str] = field(default_factory=list)
    caches: list[str] = field(default_factory=list)  # folders: what is made once and used again
    others: dict[str, Any] = field(default_factory=dict)  # what a newer Tandem keeps


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
        return _trusted(json.loads(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): remove it") from error


def _trusted(read: object) -> Trusted:
    """What a file says. Raises ValueError for another shape than it was written in."""
    if not isinstance(read, dict):
        raise ValueError("it is no object")
    empty = asdict(Trusted())
    own = {name: value for name, value in read.items() if name in empty and name != "others"}
    for name, value in own.items():
        items = value.values() if isinstance(value, dict) else value
        inner = list if name == "hosts" else str
        if type(value) is not type(empty[name]) or not all(isinstance(x, inner) for x in items):
            raise ValueError(f"{name} is of another shape")
    return Trusted(**own, others={name: read[name] for name in read.keys() - own.keys()})


def remember(config: Mapping[str, object], plugins: Mapping[str, str]) -> None:
    """Keep what a run uses that was found to be trusted. `plugins`: path -> sha256."""
    path = place()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the runs of a sweep start together
        before = read_trusted()
        hosts = {host: list(names) for host, names in before.hosts.items()}
        for one in list_elsewhere(config):
            if not one.host:  # who is asked is not known yet
                continue
            names = hosts.setdefault(one.host, [])
            if one.variable is not None and one.variable not in names:
                names.append(one.variable)
        now = replace(
            before,
            plugins={**before.plugins, **plugins},
            hosts=hosts,
            engines=sorted({*before.engines, *list_engines(config)}),
            programs=sorted({*before.programs, *(one.kept for one in list_programs(config))}),
            caches=sorted({*before.caches, *filter(None, [config.get("cache_dir")])}),
        )
        if now != before:
            durable.replace(path, json.dumps(_written(now), indent=1).encode())


def _written(now: Trusted) -> dict[str, Any]:
    """What is put down: an older Tandem reads no field that it does not know."""
    known = asdict(now)
    others = known.pop("others")
    return {name: value for name, value in (known | others).items() if value}


def believe(parts: Sequence[Override]) -> None:
    """The variables and the hosts that a command line names; of a sweep, each run says its own."""
    for part in parts:
        if not part.is_delete() and not part.is_sweep_override():
            _believe(part.key_or_group.split("."), part.value())


def _believe(path: Sequence[str], value: object) -> None:
    name, many = path[-1], isinstance(value, list)
    if isinstance(value, Mapping):
        for inner, item in value.items():
            _believe([*path, str(inner)], item)
        return
    if name == "warm_start" and many:
        believe(parse([str(word) for word in value]))
    if name.endswith("_env"):  # of several, a program is given them; a server is sent one
        (SAID_KEPT if many else SAID_VARIABLES).update(map(str, value if many else [value]))
    if name == "url" or (path[-2:-1] == ["folders"] and is_address(value)):
        SAID_HOSTS.update(hosts_of(value))
    if name == "starts" and value is True:
        SAID_STARTS.add("true")
    if name == "command" and many:
        SAID_COMMANDS.add(spell(value))


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
    for one in list_elsewhere(config):
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
    started = set(list_engines(config)) - set(read_trusted().engines)
    if started and not SAID_STARTS:
        raise ConfigError(
            f"rollout.engine.starts: the run would start a program, {min(started)}, which no run "
            "of yours has started; give rollout.engine.starts=true on the command line if that is "
            "right"
        )


def _refuse_programs(config: Mapping[str, object]) -> None:
    known = read_trusted().programs
    for one in list_programs(config):
        said = SAID_COMMANDS if one.is_command else SAID_KEPT
        if one.kept not in known and one.word not in said:
            raise ConfigError(
                f"{one.key}: the run {one.told}; give {one.key}=[...] on the command line if that "
                "is right"
            )


def digest(files: Sequence[Path]) -> str:
    """Of the bytes of these files, in their order."""
    found = hashlib.sha256()
    for file in files:
        found.update(hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()
