"""Serve rewards over HTTP: `python -m tandem serve reward=exact_match port=8123`."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from tandem.config import ConfigError, build, compose
from tandem.config.binding import bind_call
from tandem.config.building import make
from tandem.config.names import unknown
from tandem.config.overrides import parse
from tandem.config.refusals import refusals, refusing
from tandem.config.values import list_keys
from tandem.remote.serving import Capacity
from tandem.stop import end_when_told, until_told

if TYPE_CHECKING:  # torch takes a second: not for --help
    from tandem.reward_server.scoring import Scorer
    from tandem.reward_server.server import ScoreServer
    from tandem.rewards.rewards import Rewards

TOKEN = "TANDEM_REWARD_TOKEN"
SHORTEST_TOKEN = 8  # characters
GRACE = 10.0  # seconds for open requests to finish after a signal to stop
COMPOSED = ("reward", "plugins")
HELP = """\
Serve rewards over HTTP: python -m tandem serve reward=option [key=value] ...

Examples:
  python -m tandem serve reward=exact_match
  python -m tandem serve reward=[exact_match,length] reward.length.weight=0.2 port=8200
  python -m tandem serve plugins=[my_rewards] reward=mine
  TANDEM_REWARD_TOKEN=... python -m tandem serve reward=pickscore host=0.0.0.0

Then: python train.py reward=http reward.http.function.url=http://127.0.0.1:8123

Rewards are chosen and set as in train.py; several are summed with their weights. The protocol is in
docs/remote_rewards.md.

Keys:
{keys}

Environment:
  {token}  bearer token that clients must send; required for any host but loopback
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The listening address of a server."""

    host: str = "127.0.0.1"
    port: int = 8123

    def __post_init__(self) -> None:
        if not 0 <= self.port < 1 << 16:
            raise ValueError(f"port={self.port}: must be between 0 and 65535; 0 picks a free port")

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


KEYS = {
    "host": "address to listen on; any but loopback requires a token",
    "port": "0 picks a free port",
    "max_request_bytes": "largest body of a request",
    "max_requests": "read or scored at a time; more get a 503",
    "max_connections": "at a time; more are closed",
    "request_timeout": "seconds from a connection to the last byte of its request",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve the rewards of a command line until a signal stops the server."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if {"-h", "--help"} & set(words):
        print(make_help(), end="")
        return
    with refusals():
        place, capacity, overrides = read(words)
        from tandem.reward_server.scoring import make_scorer

        token = token_for(place)
        score = make_scorer(build_rewards(compose_rewards(overrides)))
        server = bind_server(place, score, token, capacity)
    run(server)


def make_help() -> str:
    """The text of --help: how to serve, and the keys."""
    defaults = {f.name: f.default for f in (*fields(Place), *fields(Capacity))}
    keys = "\n".join(
        f"  {f'{name}={defaults[name]}':<30} {what}".rstrip() for name, what in KEYS.items()
    )
    return HELP.format(keys=keys, token=TOKEN)


def read(words: Sequence[str]) -> tuple[Place, Capacity, list[str]]:
    """The address to listen on, the limits, and the overrides that choose the rewards.

    Raises ConfigError for a key that does not exist.
    """
    own: dict[str, object] = {}
    overrides, others = [], []
    for part in parse(words):
        first = part.key_or_group.partition(".")[0].partition("/")[0]
        if first in COMPOSED:
            overrides.append(part.input_line)
        elif part.key_or_group in KEYS:
            own[part.key_or_group] = part.value()
        else:
            others.append(part.key_or_group)
    for key in others:
        raise ConfigError(_unknown(key, overrides))
    return *(_record(kind, own) for kind in (Place, Capacity)), overrides


def _unknown(key: str, overrides: Sequence[str]) -> str:
    """The message about an unknown key, which may be a number of a chosen reward."""
    of_rewards = list_keys(compose_rewards(overrides), "reward.")
    meant = next((own for own in of_rewards if own.endswith(f".{key}")), None)
    listed = unknown("key", key, (*COMPOSED, *KEYS))
    return listed if meant is None else f"unknown key {key!r}: write {meant}=..."


def _record(kind: type, given: Mapping[str, object]) -> Any:
    names = {field.name for field in fields(kind)}
    known = {name: value for name, value in given.items() if name in names}
    with refusing():
        return make(bind_call(kind, known, "", partial=False))


def compose_rewards(overrides: Sequence[str]) -> Mapping[str, Any]:
    """The rewards of a command line, composed as in train.py.

    Raises ConfigError for one that cannot be served.
    """
    if not any(part.key_or_group == "reward" for part in parse(overrides)):
        raise ConfigError("reward is missing: choose one, for example reward=exact_match")
    return compose(overrides).reward


def build_rewards(nodes: Mapping[str, Any]) -> Rewards:
    """The rewards, built as in train.py from composed nodes.

    Raises ConfigError for a reward that does not bind, or needs what a server does not receive.
    """
    from tandem.reward_server.scoring import refuse_unserved
    from tandem.rewards.rewards import Rewards

    with refusing():
        rewards = Rewards({name: build(node) for name, node in nodes.items()})
        refuse_unserved(rewards)
    return rewards


def token_for(place: Place) -> str | None:
    """The token in the environment. Raises ConfigError if one is required but missing."""
    token = os.environ.get(TOKEN, "").strip() or None
    if token is None and not place.is_loopback:
        raise ConfigError(
            f"host={place.host} can be reached from other machines: set the environment variable "
            f"{TOKEN} to a token, or host=127.0.0.1"
        )
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise ConfigError(f"{TOKEN} has fewer than {SHORTEST_TOKEN} characters: set a longer token")
    return token


def bind_server(place: Place, score: Scorer, token: str | None, capacity: Capacity) -> ScoreServer:
    """Listen on an address. Raises ConfigError if that is not possible."""
    from tandem.reward_server.server import ScoreServer

    try:
        return ScoreServer((place.host, place.port), score, token=token, capacity=capacity)
    except OSError as error:
        raise ConfigError(f"host={place.host} port={place.port}: {error.strerror}") from error


def run(server: ScoreServer) -> None:
    """Serve until a signal; requests in progress may finish, unless another signal comes."""
    with until_told():
        open_to = "clients with the token" if server.token else "this machine"
        print(f"serving at {server.url} for {open_to}", flush=True)
        server.serve_forever(0.1)
    server.server_close()
    left = "" if server.drain(GRACE) else "; unanswered requests were dropped"
    print(f"ended{left}", flush=True)


if __name__ == "__main__":
    with end_when_told():
        main()
