"""Servers that a configuration names, and the environment variables sent to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from tandem.config.programs import entries_of, is_program, variables_of
from tandem.contracts.bounds import values_of
from tandem.remote import is_address
from tandem.remote.transport import LOOPBACK

PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A server that a configuration names."""

    key: str
    host: str  # scheme://host:port, or wandb:ENTITY; "": its address is not here
    variable: str | None  # sent to it; None: nothing is set


def list_elsewhere(config: Mapping[str, object]) -> Iterator[Asked]:
    """Servers on other machines, and local ones that would receive a variable: the author of a
    configuration may listen on this machine too. The model's copy of an engine comes last."""
    found = sorted(_list_asked(config, ""), key=lambda one: one.key.startswith("model."))
    here = [one for one in found if urlsplit(one.host).hostname in LOOPBACK]
    return (one for one in found if one not in here or one.variable is not None)


def _list_asked(node: object, where: str, *, placed: bool = False) -> Iterator[Asked]:
    """placed: the addresses of this part are given beside it."""
    entries = entries_of(node)
    hosts, sent = hosts_of(entries.get("url")), list(variables_of(entries))
    if where.startswith("logger.") and entries.get("mode") != "offline":
        for account in accounts_of(entries.get("entity")):
            yield Asked(key=f"{where}entity", host=account, variable=None)
    for host in hosts or ([] if placed or is_program(entries) else [""]):
        for key, name in sent:
            yield Asked(key=f"{where}{key}", host=host, variable=name)
        if host and not sent:
            yield Asked(key=f"{where}url", host=host, variable=None)
    yield from (teachers := list(_list_teachers(entries, where)))
    for key, item in entries.items():
        inner = f"{where}{key}."
        yield from _list_asked(item, inner, placed=bool(teachers) and key == "server")


def _list_teachers(node: Mapping[str, object], where: str) -> Iterator[Asked]:
    """Teachers with addresses in `folders`, and what the `server` beside it sends to each."""
    folders, server = node.get("folders"), node.get("server")
    if not isinstance(folders, Mapping):
        return
    options = entries_of(server).items()
    for source, address in folders.items():
        own = {key: x.get(source) if isinstance(x, Mapping) else x for key, x in options}
        sent = list(variables_of(own))
        for host in hosts_of(address) if is_address(address) else []:
            for key, name in sent:
                yield Asked(key=f"{where}server.{key}", host=host, variable=name)
            if not sent:
                yield Asked(key=f"{where}folders.{source}", host=host, variable=None)


def hosts_of(url: object) -> list[str]:
    """The hosts of one address or of a list."""
    named = map(_host, values_of(url))
    return [host for host in named if host]


def accounts_of(entity: object) -> list[str]:
    """The account of W&B that a logger sends a run to, as a host; []: the user's own."""
    return [] if entity is None else [f"wandb:{entity}"]


def _host(url: object) -> str:
    """scheme://host:port, the unit of trust: another port is another server."""
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
