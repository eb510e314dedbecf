"""A server of OpenEnv's protocol in this process: it records requests and can have any fault."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Server:
    """The last of three moves is worth 1. `fault` is called before each answer, and its result is
    sent."""

    fault: Callable = lambda connection, message, told: None
    sessions: list = field(default_factory=list)  # the messages received in each
    headers: list = field(default_factory=list)
    url: str = ""

    def handle(self, connection):
        told, counted = [], {}
        self.sessions.append(told)
        self.headers.append(connection.request.headers)
        for text in connection:
            message = json.loads(text)
            told.append(message)
            if message["type"] == "close":
                return
            sent = self.fault(connection, message, told)
            sent = answer(message, counted) if sent is None else sent
            connection.send(sent if isinstance(sent, str) else json.dumps(sent))

    def resets(self):
        return [told[0]["data"] for told in self.sessions]


def answer(message, counted):
    if message["type"] == "state":
        return {"type": "state", "data": counted}
    if message["type"] == "reset":
        data = message["data"]
        counted |= {"episode_id": data["episode_id"], "moves": 0, "turns": data.get("turns", 3)}
        return observation("")
    counted["moves"] += 1
    over = counted["moves"] >= counted["turns"]
    return observation("+", reward=over, done=over)


def observation(text, *, reward=None, done=False):
    seen = {"turns": [{"said": "older"}, {"said": text}], "seen": 1}
    return {"type": "observation", "data": {"observation": seen, "reward": reward, "done": done}}


def error(code, **more):
    return {"type": "error", "data": {"message": "it says no", "code": code, **more}}


@contextmanager
def serving(**options) -> Iterator[Server]:
    """A server on a free port of this machine."""
    from websockets.sync.server import serve

    server = Server(**options)
    with serve(server.handle, "127.0.0.1", 0) as socket:
        server.url = f"http://127.0.0.1:{socket.socket.getsockname()[1]}"
        thread = threading.Thread(target=socket.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            socket.shutdown()
            thread.join()
