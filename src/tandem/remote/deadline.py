"""A deadline of an exchange, enforced whatever the other side does."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Mapping
from typing import Any


class Deadline:
    """Shuts a connection down after so many seconds, even while bytes still arrive.

    Libraries limit each read, not their sum, so a timer ends the exchange. `trace` is httpcore's
    hook of that name, which gives access to a socket before its first byte.
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
        """Remove the limit: the exchange is over, or the rest of it may take any time."""
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
            # A duplicate, since the library closes its own handle. TLS detaches the first handle,
            # and TLS sockets have no dup().
            self._socket = socket.socket(fileno=os.dup(connection.fileno()))
            self._shut_if_passed()

    def _pass(self) -> None:
        with self._lock:
            self.passed = True
            self._shut_if_passed()

    def _shut_if_passed(self) -> None:
        if self.passed and self._socket is not None:
            with contextlib.suppress(OSError):  # the other side closed first
                self._socket.shutdown(socket.SHUT_RDWR)
