"""A loopback server that answers wrongly on purpose, as tests specify for each request."""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

JSON = "application/json"


class FaultyServer(ThreadingHTTPServer):
    """`script` holds behaviours for the next requests, `behaviour` is that of all others.

    A behaviour is a function of the handler and of the request body.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = (
        128  # with the default of five, a sixth concurrent call waits for a second or more
    )

    def __init__(self, port: int = 0, behaviour: Callable | None = None) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.behaviour = behaviour or says({"ok": True})
        self.script: deque[Callable] = deque()
        self.seen: list[tuple[str, str, dict, bytes]] = []  # method, path, headers, body
        self.stopping = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def count_requests(self, least: int, seconds: float = 9.0) -> int:
        """The number of requests, once it is at least `least`: a client that gives up early on a
        busy machine may be gone before its request is read."""
        end = time.monotonic() + seconds
        while len(self.seen) < least and time.monotonic() < end:
            time.sleep(0.01)
        return len(self.seen)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.seen.append((self.command, self.path, dict(self.headers), body))
        script = self.server.script
        behaviour = script.popleft() if script else self.server.behaviour
        try:
            behaviour(self, body)
        except OSError:  # the client closed the connection
            self.close_connection = True

    do_GET = do_POST

    def log_message(self, *arguments: object) -> None:
        pass

    def reply(self, status: int, body: bytes, kind: str = JSON, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(port: int = 0, behaviour: Callable | None = None) -> Iterator[FaultyServer]:
    server = FaultyServer(port, behaviour)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()


def says(value: object, status: int = 200, **headers: str) -> Callable:
    return lambda handler, body: handler.reply(status, json.dumps(value).encode(), **headers)


def sends(body: bytes, kind: str = JSON, status: int = 200, **headers: str) -> Callable:
    return lambda handler, _: handler.reply(status, body, kind, **headers)


def slow(seconds: float, then: Callable | None = None) -> Callable:
    def behave(handler: Handler, body: bytes) -> None:
        handler.server.stopping.wait(seconds)
        (then or says({"ok": True}))(handler, body)

    return behave


def drips(handler: Handler, body: bytes) -> None:
    """A byte now and then, each within any timeout of a single read; no length is announced."""
    handler.close_connection = True
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n[")
    while not handler.server.stopping.wait(0.02):
        handler.wfile.write(b"1,")


def drips_headers(handler: Handler, body: bytes) -> None:
    handler.close_connection = True
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    while not handler.server.stopping.wait(0.02):
        handler.wfile.write(b"y")


def half_json(handler: Handler, body: bytes) -> None:
    """The length of a complete reply, and half of it."""
    whole = json.dumps({"scores": list(range(100))}).encode()
    handler.close_connection = True
    handler.send_response(200)
    handler.send_header("Content-Type", JSON)
    handler.send_header("Content-Length", str(len(whole)))
    handler.end_headers()
    handler.wfile.write(whole[: len(whole) // 2])


def hangs_up(handler: Handler, body: bytes) -> None:
    handler.close_connection = True


def huge(size: int = 1 << 30, announced: bool = False) -> Callable:
    """That many bytes of JSON, at most 64 kB in memory; `sent` counts what the client took."""

    def behave(handler: Handler, body: bytes) -> None:
        handler.close_connection = True
        handler.send_response(200)
        handler.send_header("Content-Type", JSON)
        if announced:
            handler.send_header("Content-Length", str(size))
        handler.end_headers()
        part = b" " * (1 << 16)
        for _ in range(size // len(part)):
            handler.wfile.write(part)
            behave.sent += len(part)

    behave.sent = 0
    return behave
