"""Sessions on other machines over WebSockets: messages and replies, bounded in time and size."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tandem.contracts import declare
from tandem.remote.breaker import Breaker
from tandem.remote.deadline import Deadline
from tandem.remote.endpoint import admit, report
from tandem.remote.exchange import REDACTED, check_address, read_token
from tandem.remote.faults import BadReply, Late, Rejected, RemoteError, Unreachable

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

PORTS = {"http": 80, "https": 443}
TOO_BIG = 1009  # close code of a WebSocket for a message that is too large
CLOSING = 2.0  # seconds for a session to close


@declare(judges_itself=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Limits of a session."""

    connect: float = 5.0  # seconds to connect
    timeout: float = 20.0  # seconds from the first byte of a message to the last of its reply
    max_reply_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise ValueError(f"{name}={value}: must be positive")


class Sessions:
    """An address for sessions, with their limits.

    `token_env` names the environment variable with the bearer token, which is read for every
    session and stored nowhere else. `where` is the configuration key that messages name.
    Redirects are not followed, and no proxy is used. Threads may share it.
    """

    def __init__(
        self,
        url: str,
        *,
        where: str,
        token_env: str | None = None,
        limits: SessionLimits | None = None,
        breaker: Breaker | None = None,
    ) -> None:
        self.url = check_address(url)
        self.where = where
        self.token_env = token_env
        self.limits = limits or SessionLimits()
        self.breaker = breaker or Breaker()

    def __repr__(self) -> str:
        return f"Sessions({self.url!r}, token_env={self.token_env!r})"

    def open(self, path: str) -> Session:
        """A session; raises RemoteError."""
        admission = admit(self.breaker, self.url, self.where)
        try:
            session = self._open(path)
        except RemoteError as error:
            report(self.breaker, error, admission)
            raise
        self.breaker.record_success()
        return session

    def _open(self, path: str) -> Session:
        from websockets.exceptions import InvalidStatus, InvalidURI, WebSocketException

        token = read_token(self.token_env, self.url)
        try:
            return self._connect(path, token)
        except TimeoutError:
            raise Late(
                f"{self.url}: no connection within {self.limits.connect:g} s; see "
                f"{self.where}.limits.connect"
            ) from None
        except InvalidStatus as error:
            raise self._status_error(error.response.status_code) from None
        except (InvalidURI, ValueError):  # a redirect: our socket has a fixed address
            raise BadReply(
                f"{self.url}: redirects are not followed; "
                f"give the final address as {self.where}.url"
            ) from None
        except (OSError, WebSocketException) as error:
            said = f"no connection ({_redact(str(error), token)[:80]})"
            raise Unreachable(f"{self.url}: {said}; see {self.where}.url") from None

    def _connect(self, path: str, token: str | None) -> Session:
        from websockets.sync.client import connect

        parts = urlsplit(self.url)
        place = (parts.hostname, parts.port or PORTS[parts.scheme])
        with contextlib.ExitStack() as held:
            own = held.enter_context(socket.create_connection(place, timeout=self.limits.connect))
            handle = held.enter_context(own.dup())  # TLS detaches the first handle
            own.settimeout(None)  # the reader thread waits without a limit
            connection = connect(
                f"ws{self.url.removeprefix('http')}{path}",
                sock=own,
                additional_headers={} if token is None else {"Authorization": f"Bearer {token}"},
                open_timeout=self.limits.connect,
                close_timeout=CLOSING,
                ping_interval=None,
                compression=None,
                max_size=self.limits.max_reply_bytes,
            )
            held.enter_context(connection)
            return Session(self, connection, handle, held.pop_all(), hidden=token)

    def _status_error(self, status: int) -> RemoteError:
        said = f"{self.url}: status {status} instead of a session"
        if status in (401, 403):
            said += f"; put the right token into the environment variable {self.token_env}"
        if status == 429 or status >= 500:
            return Unreachable(f"{said}; see {self.where}.url")
        return Rejected(said, status=status)


class Session:
    """An open session for one thread at a time; a failure closes it."""

    def __init__(
        self,
        place: Sessions,
        connection: ClientConnection,
        handle: socket.socket,
        held: contextlib.ExitStack,
        *,
        hidden: str | None,
    ) -> None:
        """held: resources to release at the end. hidden: the token, redacted from all replies."""
        self.place, self.connection, self.handle = place, connection, handle
        self.held, self.hidden = held, hidden

    def ask(self, message: Mapping[str, object]) -> Mapping[str, object]:
        """The answer to a message; raises RemoteError."""
        from websockets.exceptions import ConnectionClosed, WebSocketException

        with Deadline(self.place.limits.timeout) as deadline:
            try:
                deadline.watch(self.handle)
                with contextlib.suppress(ConnectionClosed):  # replies before it are still read
                    self.connection.send(json.dumps(message))
                return self._read(self.connection.recv())
            except RemoteError as error:
                failed = error
            except (OSError, WebSocketException) as error:
                failed = self._connection_error(error, late=deadline.passed)
        self.held.close()
        raise failed

    def close(self, farewell: Mapping[str, object]) -> None:
        """Send the farewell, and wait briefly for the other side to close."""
        from websockets.exceptions import WebSocketException

        with Deadline(CLOSING) as deadline, contextlib.suppress(OSError, WebSocketException):
            deadline.watch(self.handle)
            self.connection.send(json.dumps(farewell))
            while True:  # unread messages, then the close
                self.connection.recv()
        self.held.close()

    def _read(self, text: str | bytes) -> Mapping[str, object]:
        if isinstance(text, str):
            text = _redact(text, self.hidden)
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._bad(f"the reply of {len(text)} characters is not a JSON object")
        return found

    def _bad(self, why: str, key: str = "url") -> BadReply:
        return BadReply(f"{self.place.url}: {why}; see {self.place.where}.{key}")

    def _connection_error(self, error: Exception, *, late: bool) -> RemoteError:
        from websockets.exceptions import ConnectionClosed

        limits, where = self.place.limits, self.place.where
        if late:
            most = f"{limits.timeout:g} s; see {where}.limits.timeout"
            return Late(f"{self.place.url}: no complete reply within {most}")
        sent = error.sent if isinstance(error, ConnectionClosed) else None
        if sent is not None and sent.code == TOO_BIG:
            why = f"the reply exceeds {limits.max_reply_bytes} bytes"
            return self._bad(why, "limits.max_reply_bytes")
        return Unreachable(
            f"{self.place.url}: the connection broke before the reply was complete; see {where}.url"
        )


def _redact(text: str, hidden: str | None) -> str:
    return text if hidden is None else text.replace(hidden, REDACTED.decode())
