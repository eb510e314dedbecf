"""List of what the user trusts: modules to import, programs to start, hosts, variables to send.

Names in a run directory or a file are not trusted. Whatever the user's own runs used is recorded in
trusted.json in the configuration folder, so that they resume without confirmation.
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
from tandem.config.programs import entries_of, list_engines, list_programs, spell
from tandem.config.servers import accounts_of, hosts_of, list_elsewhere
from tandem.record import durable
from tandem.remote import is_address

# From command lines of this process, like the next ones: variables for servers.
SAID_VARIABLES: set[str] = set()
SAID_KEPT: set[str] = set()  # variables for programs, not for servers
SAID_HOSTS: set[str] = set()  # as scheme://host:port, or wandb:ENTITY
# Caches, and folders of engines, whose addresses are trusted as if they were given.
SAID_FOLDERS: set[str] = set()
SAID_STARTS: set[str] = set()  # "true" if a command line allows starting engines
SAID_COMMANDS: set[str] = set()  # of programs


@dataclass(frozen=True, slots=True, kw_only=True)
class Trusted:
    """Hosts, variables, plugins, engines, programs and caches that runs of this user have used."""

    plugins: dict[str, str] = field(default_factory=dict)  # path -> sha256 of what is imported
    # scheme://host:port or wandb:ENTITY -> variables that were sent there
    hosts: dict[str, list[str]] = field(default_factory=dict)
    engines: list[str] = field(default_factory=list)  # started: the option and the model
    # started: a command and its folder, or a variable passed to it
    programs: list[str] = field(default_factory=list)
    caches: list[str] = field(default_factory=list)  # folders for reusable files
    others: dict[str, Any] = field(default_factory=dict)  # fields of newer versions


def place() -> Path:
    """The path of trusted.json."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "tandem" / "trusted.json"


def read_trusted() -> Trusted:
    """The content of trusted.json. Raises ConfigError for a file that cannot be read."""
    path = place()
    if not path.is_file():
        return Trusted()
    try:
        return _parse_trusted(json.loads(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); remove it") from error


def _parse_trusted(read: object) -> Trusted:
    """The record in a file. Raises ValueError for another structure than the written one."""
    if not isinstance(read, dict):
        raise ValueError("it is not an object")
    empty = asdict(Trusted())
    own = {name: value for name, value in read.items() if name in empty and name != "others"}
    for name, value in own.items():
        items = value.values() if isinstance(value, dict) else value
        inner = list if name == "hosts" else str
        if type(value) is not type(empty[name]) or not all(isinstance(x, inner) for x in items):
            raise ValueError(f"{name} has another structure")
    return Trusted(**own, others={name: read[name] for name in read.keys() - own.keys()})


def remember(config: Mapping[str, object], plugins: Mapping[str, str]) -> None:
    """Record what an accepted run uses. `plugins`: path -> sha256."""
    path = place()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the runs of a sweep start together
        before = read_trusted()
        hosts = {host: list(names) for host, names in before.hosts.items()}
        for one in list_elsewhere(config):
            if not one.host:  # the address is not known yet
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
            durable.replace(path, json.dumps(_to_json(now), indent=1).encode())


def _to_json(now: Trusted) -> dict[str, Any]:
    """The JSON object to write, without empty fields, which older versions may not know."""
    known = asdict(now)
    others = known.pop("others")
    return {name: value for name, value in (known | others).items() if value}


def believe(parts: Sequence[Override]) -> None:
    """Trust the variables and hosts on a command line; each run of a sweep has its own."""
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
    if name.endswith("_env"):  # a list is for a program, a single one for a server
        (SAID_KEPT if many else SAID_VARIABLES).update(map(str, value if many else [value]))
    if name == "url" or (path[-2:-1] == ["folders"] and is_address(value)):
        SAID_HOSTS.update(hosts_of(value))
    if name == "entity" and path[0] == "logger":
        SAID_HOSTS.update(accounts_of(value))
    if name == "cache_dir" or [*path[-2:]] == ["engine", "folder"]:
        SAID_FOLDERS.add(str(value))
    if name == "starts" and value is True:
        SAID_STARTS.add("true")
    if name == "command" and many:
        SAID_COMMANDS.add(spell(value))


def refuse_unsaid(config: Mapping[str, object], *, recorded: bool) -> None:
    """Raise if the run would send a variable to a host or start a program that is not trusted.

    `recorded`: the configuration is that of a run, which may not contact other hosts or start
    other engines than the trusted ones.
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
                f"{one.key}: the run would connect to {one.host}, which you have not named; give "
                f"{one.key}=... on the command line if that is right"
            )


def refuse_unsaid_folders(config: Mapping[str, Any], *, own: str) -> None:
    """Raise for a cache, or a folder in which addresses are found, that is not trusted. `own`: the
    user's cache_dir."""
    trusted = [Path(x).resolve() for x in (own, *read_trusted().caches, *SAID_FOLDERS)]
    engine = entries_of(config["rollout"].get("engine"))
    finds = engine.get("url") == "auto" and not engine.get("starts")
    used = {"cache_dir": config["cache_dir"]}
    used |= {"rollout.engine.folder": engine["folder"]} if finds else {}
    for key, folder in used.items():
        if not any(Path(folder).resolve().is_relative_to(one) for one in trusted):
            whole = f"{key}={folder}"
            raise ConfigError(
                f"{whole}: the run would read this folder, which you have not named; give {whole} "
                "on the command line if that is right"
            )


def with_address(config: Mapping[str, Any], url: str) -> Mapping[str, Any]:
    """The part of a configuration to check and record once an address is found (`url=auto`)."""
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
    """The sha256 of the contents of these files, in order."""
    found = hashlib.sha256()
    for file in files:
        found.update(hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()
