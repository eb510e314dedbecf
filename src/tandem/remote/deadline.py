"""A deadline of an exchange, which holds whatever the other side does."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Mapping
from typing import Any


class Deadline:
    """Shuts a connection down after so many seconds, even while bytes still arrive.

    Libraries bound each read and not their sum, so a timer ends them all. `trace` is for httpcore's
    hook of that name, where a socket is seen before its first byte.
    """

    def __init__(self, seconds: float) -> None:
        self.passed = False
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._pass)
        self._timer.daemon = True

    def __enter__(self) -> Deadline:
        self._timer.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.lift()

    def lift(self) -> None:
        """The exchange is over, or may now take as long as it likes."""
        self._timer.cancel()
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            self.watch(info["return_value"].get_extra_info("socket"))

    def watch(self, connection: socket.socket) -> None:
        with self._lock:
            # A second handle, since closing is not ours. TLS takes the first one away, and its own
            # sockets have no dup().
            self._socket = socket.socket(fileno=os.dup(connection.fileno()))
            self._shut_if_passed()

    def _pass(self) -> None:
        with self._lock:
            self.passed = True
            self._shut_if_passed()

    def _shut_if_passed(self) -> None:
        if self.passed and self._socket is not None:
            with contextlib.suppress(OSError):  # the other side was faster
                self._socket.shutdown(socket.SHUT_RDWR)
