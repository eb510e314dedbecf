"""A server that answers `POST /score` with the rewards of samples, and `GET /health`."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence

from tandem.remote.serving import Capacity, Handler, Refusal, Server, has_hung_up
from tandem.reward_server.scoring import Scorer
from tandem.rewards.serialization import PICTURES, TEXTS, Number, Row, decode, encode_numbers

PATHS = "supported: GET /health and POST /score"


class ScoreServer(Server):
    """A server of one reward for many clients. Calls are serialized: few rewards are thread-safe.

    `token` must match `Authorization: Bearer`; None: no token is needed.
    """

    def __init__(
        self, address: tuple[str, int], score: Scorer, *, token: str | None, capacity: Capacity
    ) -> None:
        self.score = score
        self.token = token
        self.turn = threading.Lock()
        super().__init__(address, ScoreHandler, capacity=capacity)

    def score_rows(self, rows: Sequence[Row], client: socket.socket) -> list[Number]:
        """The scores of rows. Raises ConnectionAbortedError if the client has disconnected."""
        with self.turn:
            if has_hung_up(client):  # it will retry, so its rows would be scored twice
                print(f"{len(rows)} samples dropped: the client disconnected", flush=True)
                raise ConnectionAbortedError
            start = time.monotonic()
            numbers = self.score(rows)
        missing = sum(not isinstance(number, int | float) for number in numbers)
        took = f"{time.monotonic() - start:.2f} s"
        print(f"{len(rows)} samples in {took}, {missing} without a score", flush=True)
        return numbers


class ScoreHandler(Handler):
    """A connection of a client that requests scores."""

    server: ScoreServer

    def get(self) -> bytes:
        if self.path != "/health":
            raise Refusal(404, PATHS)
        return b'{"status": "ok"}'

    def post(self) -> bytes:
        if self.path != "/score":
            raise Refusal(404, PATHS)
        if self.server.token is not None:
            self.check_token(self.server.token)
        kind, length = self._kind(), self.length()
        with self.server.hold_slot():
            body = self.body(length)
            try:
                rows = decode(kind, body)
            except ValueError as error:
                raise Refusal(400, str(error)) from None
            ids = [row.id for row in rows]
            return encode_numbers(ids, self.server.score_rows(rows, self.connection))

    def _kind(self) -> str:
        kind = self.content_type()
        if kind not in (TEXTS, PICTURES):
            raise Refusal(415, f"the content type must be {TEXTS} or {PICTURES}")
        return kind
