"""A base HTTP server: limits of connections and requests, tokens, one-line refusals."""

from __future__ import annotations

import hmac
import json
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import wait
from socketserver import TCPServer

from tandem.remote.deadline import Deadline

JSON = "application/json"
PART = 1 << 16  # bytes
LINGER = 2.0  # seconds for a refused client to read the reason
BUSY = ("Retry-After", "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The limits of a server."""

    max_request_bytes: int = 256 << 20  # bytes of a body
    max_requests: int = 32  # read or scored at a time; more get a 503
    max_connections: int = 64  # at a time; more are closed
    request_timeout: float = 60.0  # seconds from the connection to the last byte of the request

    def __post_init__(self) -> None:
        sizes = (self.max_request_bytes, self.max_requests, self.max_connections)
        if not min(*sizes, self.request_timeout) > 0:
            raise ValueError(
                "max_request_bytes, max_requests, max_connections and request_timeout must be "
                "positive"
            )


class Refusal(Exception):
    """The refusal of a request: a status and one line."""

    def __init__(self, status: int, line: str, header: tuple[str, str] | None = None) -> None:
        super().__init__(line)
        self.status = status
        self.headers = [] if header is None else [header]


class Server(ThreadingHTTPServer):
    """A server with a thread for each connection, up to a limit."""

    daemon_threads = True  # a hanging answer must not block the exit
    block_on_close = False
    request_queue_size = 64

    def __init__(
        self, address: tuple[str, int], handler: type[Handler], *, capacity: Capacity
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.capacity = capacity
        self.connections = threading.BoundedSemaphore(capacity.max_connections)
        self.requests = threading.BoundedSemaphore(capacity.max_requests)
        super().__init__(address, handler)

    @property
    def url(self) -> str:
        """The address for clients."""
        host, port = self.server_address[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's would look up the host name
        self.server_name, self.server_port = self.server_address[:2]

    def process_request(self, request: socket.socket, client_address: tuple) -> None:
        if self.connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: socket.socket, client_address: tuple) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.release()

    def handle_error(self, request: socket.socket, client_address: tuple) -> None:
        """Ignore a broken connection: it concerns only the client."""

    @contextmanager
    def hold_slot(self) -> Iterator[None]:
        """Hold one request slot. Raises Refusal if all are taken."""
        if not self.requests.acquire(blocking=False):
            raise Refusal(503, f"{self.capacity.max_requests} requests are being answered", BUSY)
        try:
            yield
        finally:
            self.requests.release()

    def drain(self, seconds: float) -> bool:
        """Whether all requests are answered, after waiting so many seconds at most."""
        end = time.monotonic() + seconds
        held = 0
        while held < self.capacity.max_requests:
            if not self.requests.acquire(timeout=max(end - time.monotonic(), 0)):
                return False
            held += 1
        return True


class Handler(BaseHTTPRequestHandler):
    """A connection that reads a request and answers it. Subclasses define `get` and `post`."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "tandem", ""
    server: Server
    media_type = JSON  # of the answer

    def get(self) -> bytes:
        """The answer to a GET. Raises Refusal."""
        raise NotImplementedError

    def post(self) -> bytes:
        """The answer to a POST. Raises Refusal."""
        raise NotImplementedError

    def fault(self, line: str) -> bytes:
        """The body of a refusal, in JSON."""
        return json.dumps({"error": " ".join(line.split())}).encode()

    def setup(self) -> None:
        """Set the limits of the socket before the first read."""
        self.timeout = self.server.capacity.request_timeout  # of a single read or write
        super().setup()

    def handle(self) -> None:
        with Deadline(self.server.capacity.request_timeout) as self.reading:
            self.reading.watch(self.connection)
            super().handle()

    def do_GET(self) -> None:
        self._answer(self.get)

    def do_POST(self) -> None:
        self._answer(self.post)

    def log_message(self, *arguments: object) -> None:
        """Log nothing: subclasses print their own lines."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that the base class rejects with one line too."""
        self._send(code, self.fault("unsupported or malformed request"), [])

    def check_token(self, token: str) -> None:
        """Refuse a request without this bearer token."""
        given = self.headers.get("Authorization", "").encode(errors="replace")
        if not hmac.compare_digest(given, f"Bearer {token}".encode()):
            raise Refusal(401, "a bearer token is required", ("WWW-Authenticate", "Bearer"))

    def content_type(self) -> str:
        """The media type of the body, without its parameters."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    def length(self) -> int:
        """The length of the body in bytes. Raises Refusal if it is too large or not given."""
        said = self.headers.get("Content-Length", "")
        if not (said.isascii() and said.isdigit() and len(said) < 19):
            raise Refusal(411, "a Content-Length is required")
        if int(said) > self.server.capacity.max_request_bytes:
            most = self.server.capacity.max_request_bytes
            raise Refusal(413, f"the body exceeds {most} bytes (max_request_bytes)")
        return int(said)

    def body(self, length: int) -> bytes:
        """The whole body; after it the answer may take any time. Raises Refusal where it ends too
        soon."""
        body = self.rfile.read(length)
        self.reading.lift()
        if len(body) < length:
            raise Refusal(400, f"the body ended after {len(body)} of {length} bytes")
        return body

    def _answer(self, make: Callable[[], bytes]) -> None:
        try:
            self._send(200, make(), [])
        except Refusal as refusal:
            self._send(refusal.status, self.fault(str(refusal)), refusal.headers)
            self._linger()
        except OSError:  # the client has disconnected or is too slow
            self.close_connection = True
        except Exception:
            traceback.print_exc()
            self._send(500, self.fault("the server failed; see its log"), [])

    def _send(self, status: int, body: bytes, headers: Sequence[tuple[str, str]]) -> None:
        self.close_connection = True
        self.send_response(status)
        fixed = [("Content-Type", self.media_type), ("Content-Length", str(len(body)))]
        for name, value in (*fixed, ("Connection", "close"), *headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _linger(self) -> None:
        """Read the rest: closing a socket with unread bytes would lose the answer."""
        self.connection.settimeout(LINGER)
        end = time.monotonic() + LINGER
        try:
            self.connection.shutdown(socket.SHUT_WR)
            while time.monotonic() < end and self.connection.recv(PART):
                pass
        except OSError:
            return  # the client has disconnected


def has_hung_up(client: socket.socket) -> bool:
    """Whether a client has closed its side. Raises OSError where the connection broke."""
    return bool(wait([client], 0)) and client.recv(1, socket.MSG_PEEK) == b""
