"""The report of runs that go on, for this machine alone: `serve=true`, or `serve=PORT`.

A page is made when somebody looks and a file has changed, and takes a tenth of one core at most.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tandem.compare.payload import empty, payload
from tandem.compare.report import Comparison, page
from tandem.compare.runs import CONFIG, MANIFEST, METRICS, TIMING, Run, find, read

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")  # any other is a page elsewhere that had its name point here
SHARE = 0.1  # of one core, at most
Signature = tuple[tuple[int, int], ...]  # size and time of what a run writes


class Watched:
    """Runs at some places, of which only those are read again that wrote something."""

    def __init__(self, places: Sequence[str], compare: Callable[[list[Run]], Comparison]) -> None:
        self.places = places
        self.compare = compare
        self._known: dict[Path, tuple[Signature, Run | ValueError]] = {}
        self._body, self._tag, self._rest = b"", "", 0.0
        self._turn = threading.Lock()

    @property
    def title(self) -> str:
        return " ".join(self.places)

    def latest(self) -> tuple[str, bytes]:
        """A tag of what lies on disk, and the numbers of the page as JSON."""
        with self._turn:
            if time.monotonic() >= self._rest:
                self._refresh()
            return self._tag, self._body

    def _refresh(self) -> None:
        start = time.process_time()
        try:
            folders = find(self.places)
            signatures = {folder: signature(folder) for folder in folders}
            tag = hashlib.sha256(repr(sorted(signatures.items())).encode()).hexdigest()[:16]
            if tag != self._tag:
                data = self._data(signatures)
                self._body, self._tag = json.dumps({**data, "tag": tag}).encode(), tag
        except (ValueError, OSError) as error:  # what cannot be shown now may be shown soon
            tag = hashlib.sha256(str(error).encode()).hexdigest()[:16]
            self._body, self._tag = json.dumps({**empty(str(error)), "tag": tag}).encode(), tag
        self._rest = time.monotonic() + (time.process_time() - start) / SHARE

    def _data(self, signatures: dict[Path, Signature]) -> dict[str, object]:
        for folder in self._known.keys() - signatures.keys():
            del self._known[folder]
        for folder, now in signatures.items():
            if folder not in self._known or self._known[folder][0] != now:
                self._known[folder] = now, read_or_why(folder)
        found = [run for _, run in self._known.values()]
        data = payload(self.compare([run for run in found if isinstance(run, Run)]))
        unread = [str(why) for why in found if isinstance(why, ValueError)]
        return data | {"meta": " · ".join([str(data["meta"]), *unread])}


def signature(folder: Path) -> Signature:
    """It changes with every line and every table of samples."""
    files = (folder / name for name in (CONFIG, MANIFEST, METRICS, TIMING, "samples"))
    stats = (file.stat() for file in files if file.exists())
    return tuple((stat.st_size, stat.st_mtime_ns) for stat in stats)


def read_or_why(folder: Path) -> Run | ValueError:
    try:
        return read(folder)
    except ValueError as error:
        return error


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, watched: Watched, port: int) -> None:
        self.watched = watched
        super().__init__((HOST, port), Handler)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that breaks is the reader's affair."""


class Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "tandem", ""

    def do_GET(self) -> None:
        if self.headers.get("Host", "").rpartition(":")[0] not in NAMES:
            self._send(403, "text/plain", b"this page is for the machine that it runs on")
            return
        asked = urlsplit(self.path)
        tag, body = self.server.watched.latest()
        if asked.path == "/":
            text = page(json.loads(body), self.server.watched.title, live=True)
            self._send(200, "text/html", text.encode())
        elif asked.path == "/data.json":
            same = parse_qs(asked.query).get("tag") == [tag]
            self._send(204 if same else 200, "application/json", b"" if same else body)
        else:
            self._send(404, "text/plain", b"there are / and /data.json")

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """A page that asks every few seconds would fill the terminal."""


def serve(watched: Watched, port: int) -> None:
    """Until Ctrl-C. Raises OSError where the port is taken."""
    with Server(watched, port) as server:
        try:
            print(f"{server.url} (Ctrl-C ends it)", flush=True)
            server.serve_forever()
        except KeyboardInterrupt:
            print()
