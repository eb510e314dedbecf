"""HTTP transports: one opens a connection for each request, the other keeps connections."""

from __future__ import annotations

import http.client
import logging
import select
import socket
import threading
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, urlsplit

from tandem.remote.deadline import Deadline

if TYPE_CHECKING:
    import httpx

LOOPBACK = ("localhost", "127.0.0.1", "::1")
PART = 1 << 16  # bytes of a body per read


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request to a server."""

    method: str
    url: str
    body: bytes
    kind: str  # media type of the body


class Head(NamedTuple):
    """The status and headers of a reply."""

    status: int
    reason: str
    headers: Mapping[str, str]  # names are case-insensitive


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The time of one exchange."""

    deadline: Deadline  # of the whole exchange
    seconds: float  # until the deadline
    connect: float  # seconds to connect


class Phase(Enum):
    """The phase in which an exchange broke."""

    CONNECTING_TOO_LONG = auto()
    NO_CONNECTION = auto()
    WAITING_TOO_LONG = auto()
    BROKEN = auto()


Body = Iterator[bytes]


class Transport(ABC):
    """A way to exchange requests and replies. Threads may share it."""

    @property
    @abstractmethod
    def errors(self) -> tuple[type[Exception], ...]:
        """The exceptions of `exchange` besides OSError."""

    @abstractmethod
    def phase(self, error: Exception) -> Phase:
        """The phase in which an exchange ended with this error."""

    @abstractmethod
    def exchange(
        self, request: Request, headers: Mapping[str, str], times: Times
    ) -> AbstractContextManager[tuple[Head, Body]]:
        """The reply; its body arrives in parts while the context is open."""


def transport_to(url: str, *, keep_alive: bool) -> Transport:
    """keep_alive: connections are kept for further requests, but none through a proxy."""
    return KeptConnections() if keep_alive and not is_proxied(url) else SingleConnections()


def is_proxied(url: str) -> bool:
    """Whether the environment names a proxy for an address; loopback never has one."""
    parts = urlsplit(url)
    if parts.hostname in LOOPBACK or urllib.request.proxy_bypass(parts.netloc):
        return False
    return bool({parts.scheme, "all"} & urllib.request.getproxies().keys())


class SingleConnections(Transport):
    """A connection for each request, through a proxy if the environment names one."""

    def __init__(self) -> None:
        self._clients: dict[bool, httpx.Client] = {}
        self._lock = threading.Lock()

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        import httpx

        return (httpx.TransportError,)

    def phase(self, error: Exception) -> Phase:
        import httpx

        if isinstance(error, httpx.ConnectTimeout):
            return Phase.CONNECTING_TOO_LONG
        if isinstance(error, httpx.TimeoutException):
            return Phase.WAITING_TOO_LONG
        return Phase.NO_CONNECTION if isinstance(error, httpx.ConnectError) else Phase.BROKEN

    @contextmanager
    def exchange(
        self, request: Request, headers: Mapping[str, str], times: Times
    ) -> Iterator[tuple[Head, Body]]:
        import httpx

        with self._client(request.url).stream(
            request.method,
            request.url,
            content=request.body,
            headers={**headers, "Connection": "close"},
            timeout=httpx.Timeout(times.seconds, connect=times.connect),
            extensions={"trace": times.deadline.trace},
        ) as response:
            head = Head(response.status_code, response.reason_phrase, response.headers)
            yield head, response.iter_raw()

    def _client(self, url: str) -> httpx.Client:
        """A client made once, since making it reads the certificates."""
        import httpx

        logging.getLogger("httpx").setLevel(logging.WARNING)  # else a line for every request
        outside = urlsplit(url).hostname not in LOOPBACK
        with self._lock:
            if outside not in self._clients:
                alone = httpx.Limits(max_connections=None, max_keepalive_connections=0)
                nothing = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
                self._clients[outside] = httpx.Client(
                    trust_env=outside, limits=alone, cookies=nothing
                )
            return self._clients[outside]


class KeptConnections(Transport):
    """A pool with one connection per concurrent request, reused for later requests.

    A connection that the server has closed is dropped; one that closes while a request is sent
    fails that attempt.
    """

    errors = (http.client.HTTPException,)

    def __init__(self) -> None:
        self._idle: dict[tuple[str, str], list[http.client.HTTPConnection]] = {}
        self._lock = threading.Lock()

    def phase(self, error: Exception) -> Phase:
        if isinstance(error, NoConnectionError):
            late = isinstance(error.__cause__, TimeoutError)
            return Phase.CONNECTING_TOO_LONG if late else Phase.NO_CONNECTION
        return Phase.WAITING_TOO_LONG if isinstance(error, TimeoutError) else Phase.BROKEN

    @contextmanager
    def exchange(
        self, request: Request, headers: Mapping[str, str], times: Times
    ) -> Iterator[tuple[Head, Body]]:
        parts = urlsplit(request.url)
        connection = self._connection(parts, times)
        response = None
        try:
            target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
            connection.request(request.method, target, request.body or None, dict(headers))
            response = connection.getresponse()
            yield Head(response.status, response.reason, response.headers), parts_of(response)
        finally:
            if is_whole(response) and not times.deadline.passed:
                with self._lock:
                    self._idle.setdefault(parts[:2], []).append(connection)
            else:
                connection.close()

    def _connection(self, parts: SplitResult, times: Times) -> http.client.HTTPConnection:
        """A kept or new connection, watched by the deadline."""
        connection = self._take_idle(parts)
        if connection is None:
            kind = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
            connection = kind[parts.scheme](parts.netloc, timeout=times.connect)
            try:
                connection.connect()
            except OSError as error:
                raise NoConnectionError(str(error)) from error
        connection.sock.settimeout(times.seconds)
        times.deadline.watch(connection.sock)
        return connection

    def _take_idle(self, parts: SplitResult) -> http.client.HTTPConnection | None:
        while True:
            with self._lock:
                idle = self._idle.get(parts[:2])
                if not idle:
                    return None
                connection = idle.pop()
            if is_quiet(connection):
                return connection
            connection.close()


class NoConnectionError(OSError):
    """No connection could be made."""


def is_quiet(connection: http.client.HTTPConnection) -> bool:
    """Whether a connection received nothing since the last reply, neither bytes nor its end."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return not poll.poll(0)


def is_whole(response: http.client.HTTPResponse | None) -> bool:
    """Whether a response was read completely, so that another request may follow."""
    if response is None or response.will_close:
        return False
    return response.isclosed() and not response.length


def parts_of(response: http.client.HTTPResponse) -> Body:
    """The body, until its end. Raises http.client.IncompleteRead where it is cut off."""
    while part := response.read(PART):
        yield part
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)


def free_port() -> int:
    """A free TCP port."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
