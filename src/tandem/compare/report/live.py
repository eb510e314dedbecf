"""The live report of runs in progress, served on this machine: `serve=true` or `serve=PORT`.

The page is rebuilt on a request if a file has changed, and uses at most a tenth of one core.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import socket
from urllib.parse import parse_qs, urlsplit

from tandem.compare import selection
from tandem.compare.comparison import Comparison
from tandem.compare.report.payload import make_empty_payload, make_payload
from tandem.compare.report.write import write_page
from tandem.record.foreign import UNREADABLE
from tandem.record.reading.runs import (
    CONFIG,
    EVALUATIONS,
    MANIFEST,
    METRICS,
    TIMING,
    Run,
    find,
    read,
)
from tandem.record.reading.states import is_working
from tandem.stop import until_told

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")  # any other Host is a foreign page
SHARE = 0.1  # of one core, at most
WRITES = (CONFIG, MANIFEST, METRICS, TIMING, EVALUATIONS, "samples")  # sources of the page
Signature = tuple[object, ...]  # size and time of files; for a run also whether it is working


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A version of the page."""

    tag: str  # hash of the files it was built from
    body: bytes  # the numbers of the page as JSON
    fault: str = ""  # a bug in one line; there are no numbers then


class Watched:
    """Runs at some places; only those that wrote something are read again."""

    def __init__(self, places: Sequence[str], compare: Callable[[list[Run]], Comparison]) -> None:
        self.places = places
        self.compare = compare
        self._known: dict[Path, tuple[Signature, Run | ValueError]] = {}
        self._shown, self._rest = Shown(tag="", body=b""), 0.0
        self._turn = threading.Lock()

    @property
    def title(self) -> str:
        return " ".join(self.places)

    def latest(self) -> Shown:
        with self._turn:
            if time.monotonic() >= self._rest:
                start = time.process_time()
                self._refresh()
                self._rest = time.monotonic() + (time.process_time() - start) / SHARE
            return self._shown

    def _refresh(self) -> None:
        try:
            folders, waiting = self._find_runs()
            signatures = {one: (works_or_why(one), *signature(one, WRITES)) for one in folders}
            chosen = [signature(Path(place), (selection.FILE,)) for place in self.places]
            tag = tag_of(repr((sorted(signatures.items()), chosen, waiting)))
        except (ValueError, OSError) as error:  # may be readable at the next request
            self._shown = nothing(error, tag_of(str(error)))
            return
        if tag != self._shown.tag:
            self._shown = self._render(signatures, waiting, tag)

    def _find_runs(self) -> tuple[list[Path], list[str]]:
        """The runs, and a sentence for each place without runs yet."""
        folders: dict[Path, None] = {}
        waiting = []
        for place in self.places:
            try:
                folders |= dict.fromkeys(find([place]))
            except ValueError as why:
                waiting.append(str(why))
        if not folders:
            raise ValueError("; ".join(waiting))
        return list(folders), waiting

    def _render(
        self, signatures: Mapping[Path, Signature], waiting: Sequence[str], tag: str
    ) -> Shown:
        try:
            data = self._data(signatures, waiting)
        except (ValueError, OSError) as error:
            return nothing(error, tag)
        except Exception as error:  # a bug: show it on the page and keep serving
            traceback.print_exc()
            return Shown(tag=tag, body=b"", fault=traceback.format_exception_only(error)[0].strip())
        return Shown(tag=tag, body=json.dumps({**data, "tag": tag}).encode())

    def _data(
        self, signatures: Mapping[Path, Signature], waiting: Sequence[str]
    ) -> dict[str, object]:
        for folder in self._known.keys() - signatures.keys():
            del self._known[folder]
        for folder, now in signatures.items():
            if folder not in self._known or self._known[folder][0] != now:
                self._known[folder] = now, read_or_why(folder)
        found = [run for _, run in self._known.values()]
        data = make_payload(self.compare([run for run in found if isinstance(run, Run)]))
        unread = [str(why) for why in found if isinstance(why, ValueError)]
        return data | {"meta": " · ".join([str(data["meta"]), *unread, *waiting])}


def nothing(why: Exception, tag: str) -> Shown:
    return Shown(tag=tag, body=json.dumps({**make_empty_payload(str(why)), "tag": tag}).encode())


def tag_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def signature(folder: Path, names: Sequence[str]) -> Signature:
    """Sizes and times of files, which change with every line and every table of samples."""
    stats = ((folder / name).stat() for name in names if (folder / name).exists())
    return tuple((stat.st_size, stat.st_mtime_ns) for stat in stats)


def works_or_why(folder: Path) -> bool | str | None:
    try:
        return is_working(folder)
    except UNREADABLE as error:
        return str(error)


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

    def handle_error(self, request: socket, client_address: tuple[str, int]) -> None:
        # A browser may drop a connection at any time.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "tandem", ""

    def do_GET(self) -> None:
        if self.headers.get("Host", "").partition(":")[0] not in NAMES:
            self._send(403, "text/plain", b"this page is only served to its own machine")
            return
        asked = urlsplit(self.path)
        if asked.path not in ("/", "/data.json"):
            self._send(404, "text/plain", b"not found; the pages are / and /data.json")
            return
        now = self.server.watched.latest()
        if now.fault:
            self._send(500, "text/plain", now.fault.encode())
        elif asked.path == "/":
            text = write_page(json.loads(now.body), self.server.watched.title, live=True)
            self._send(200, "text/html", text.encode())
        else:
            same = parse_qs(asked.query).get("tag") == [now.tag]
            self._send(204 if same else 200, "application/json", b"" if same else now.body)

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Log nothing: the page polls every few seconds and would fill the terminal."""


def serve(watched: Watched, port: int) -> None:
    """Serve until a signal. Raises OSError if the port is taken."""
    with Server(watched, port) as server, until_told():
        print(f"{server.url} (Ctrl-C ends it)", flush=True)
        server.serve_forever()
    print("ended", flush=True)
