"""One HTTP attempt: its request, its reply and its failures."""

from __future__ import annotations

import email.utils
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

from tandem.contracts import declare
from tandem.remote.deadline import Deadline
from tandem.remote.faults import BadReply, Late, Rejected, RemoteError, Unreachable, Unwell
from tandem.remote.transport import Head, Phase, Request, Times, Transport

JSON = "application/json"
REDACTED = b"<redacted>"
PAGE = 4096  # bytes read of an error page
SHOWN = 200  # characters shown of it


@declare(judges_itself=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a call."""

    connect: float = 5.0  # seconds to connect
    timeout: float = 60.0  # seconds for one attempt, from the connection to the last byte
    deadline: float = 180.0  # seconds for a call: its attempts and the waits between them
    max_reply_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise ValueError(f"{name}={value}: must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The body of a 2xx reply, with the token redacted."""

    body: bytes
    kind: str  # media type, without its parameters


class Wire:
    """A sender of single requests, which stores no cookie and no token.

    `token_env` names the environment variable with the bearer token, which is read for every
    request. `where` is the configuration key that messages name; `keys` replaces the keys of single
    limits and of the `url`.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        limits: Limits,
        token_env: str | None,
        where: str,
        keys: Mapping[str, str] | None = None,
    ) -> None:
        self.transport = transport
        self.limits = limits
        self.token_env = token_env
        limited = {name: f"{where}.limits.{name}" for name in asdict(limits)}
        self.keys = limited | {"url": f"{where}.url"} | dict(keys or {})

    def send(self, request: Request, seconds: float) -> Reply:
        """The reply, within so many seconds; raises RemoteError."""
        with Deadline(seconds) as deadline:
            try:
                reply = self._send(request, deadline, seconds)
            except (OSError, *self.transport.errors) as error:
                raise self._transport_error(request, error, deadline.passed, seconds) from None
        if deadline.passed:  # a reply cut off by the deadline may look complete
            raise self._late(request, seconds)
        return reply

    def _send(self, request: Request, deadline: Deadline, seconds: float) -> Reply:
        token = read_token(self.token_env, request.url)
        headers = {"Content-Type": request.kind, "Accept-Encoding": "identity"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        connect = min(seconds, self.limits.connect)
        times = Times(deadline=deadline, seconds=seconds, connect=connect)
        with self.transport.exchange(request, headers, times) as (head, parts):
            hidden = None if token is None else token.encode()
            if not 200 <= head.status < 300:
                raise self._status_error(request, head, parts, hidden)
            kind = head.headers.get("content-type", "").partition(";")[0].strip().lower()
            return Reply(body=self._body(request, head, parts, hidden), kind=kind)

    def _body(
        self, request: Request, head: Head, parts: Iterator[bytes], hidden: bytes | None
    ) -> bytes:
        most = self.limits.max_reply_bytes
        if "content-encoding" in head.headers:
            raise BadReply(f"{request.url}: the reply is compressed, although none was requested")
        announced = head.headers.get("content-length", "0").strip()
        if not announced.isdecimal():
            raise BadReply(f"{request.url}: the Content-Length of the reply is not a number")
        body = bytearray()
        if int(announced[:20]) <= most:  # a longer number is too large by its beginning
            for part in parts:
                body += part
                if len(body) > most:
                    break
            else:
                return _redact(bytes(body), hidden)
        raise BadReply(
            f"{request.url}: the reply exceeds {most} bytes; raise {self.keys['max_reply_bytes']}"
        )

    def _status_error(
        self, request: Request, head: Head, parts: Iterator[bytes], hidden: bytes | None
    ) -> RemoteError:
        status, page = head.status, _shorten(parts, hidden)
        came = f"{request.url}: {status} {_shorten([head.reason.encode()], hidden)}".rstrip()
        said = f", {page!r}" if page else ""
        if 300 <= status < 400 and "location" in head.headers:
            said = f"redirects are not followed; give the final address as {self.keys['url']}"
            return BadReply(f"{came}, and {said}")
        if status == 429 or status >= 500:
            return Unwell(f"{came}{said}", status=status, retry_after=_retry_after(head))
        if status in (401, 403):
            said = f"; put the right token into the environment variable {self.token_env}{said}"
        return Rejected(f"{came}{said}", status=status)

    def _transport_error(
        self, request: Request, error: Exception, passed: bool, seconds: float
    ) -> RemoteError:
        phase = Phase.WAITING_TOO_LONG if passed else self.transport.phase(error)
        if phase is Phase.CONNECTING_TOO_LONG:
            most = f"{self.limits.connect:g} s; see {self.keys['connect']}"
            return Late(f"{request.url}: no connection within {most}")
        if phase is Phase.WAITING_TOO_LONG:
            return self._late(request, seconds)
        if phase is Phase.NO_CONNECTION:
            said = f"no connection ({str(error)[:80]})"
        else:
            said = "the connection broke before the reply was complete"
        return Unreachable(f"{request.url}: {said}; see {self.keys['url']}")

    def _late(self, request: Request, seconds: float) -> Late:
        whole = seconds >= self.limits.timeout
        key, most = ("timeout", seconds) if whole else ("deadline", self.limits.deadline)
        late = Late(f"{request.url}: no complete reply within {most:g} s; see {self.keys[key]}")
        late.whole = whole
        return late


def read_token(variable: str | None, url: str) -> str | None:
    """The bearer token in an environment variable; None: there is none."""
    token = None if variable is None else os.environ.get(variable, "").strip()
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise RemoteError(f"{url}: {variable} must be a token of printable ASCII without spaces")
    return token or None


def is_address(place: object) -> bool:
    """Whether a place is the address of a server, not a folder or a name."""
    try:
        return isinstance(place, str) and urlsplit(place).scheme in ("http", "https")
    except ValueError:  # a malformed address, which `check_address` reports
        return True


def check_address(url: str) -> str:
    """The address without a trailing slash. Raises ValueError if it is not a valid one."""
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            "url: an address must not contain credentials, ? or #; put the token into the "
            "environment variable that token_env names"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"url={url}: expected http://host:port or https://...")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError(f"url={url}: the port must be a number from 0 to 65535") from None
    return url.rstrip("/")


def _shorten(parts: Iterable[bytes], hidden: bytes | None) -> str:
    """The beginning of an error page or of a reason, in one line, with the token redacted."""
    body = b""
    for part in parts:
        body += part
        if len(body) >= PAGE:
            break
    text = _redact(body[:PAGE], hidden).decode(errors="replace")
    return " ".join(text.split())[:SHOWN]


def _redact(body: bytes, hidden: bytes | None) -> bytes:
    return body if hidden is None else body.replace(hidden, REDACTED)


def _retry_after(head: Head) -> float | None:
    """The seconds of the header, which holds a number or a date; None: neither."""
    said = head.headers.get("retry-after", "").strip()
    if said.isascii() and said.isdigit():
        return float(said[:9])
    try:
        return email.utils.parsedate_to_datetime(said).timestamp() - time.time()
    except (ValueError, OverflowError):  # the latter for a zone of very many digits
        return None
