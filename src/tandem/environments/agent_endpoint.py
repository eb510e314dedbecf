"""The endpoint of agents: local `/SESSION/v1/chat/completions`, one session per episode."""

from __future__ import annotations

import json
import logging
import queue
import secrets
import socket
import threading
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from tandem.environments.chat_api import Request, read_request
from tandem.environments.program import FILES, raise_file_limit
from tandem.remote.serving import Capacity, Handler, Refusal, Server, has_hung_up

MODEL = "policy"
EVENTS = "text/event-stream"
HOST = "127.0.0.1"
POLL = 0.1  # seconds between checks for the end
REPEATS = 3  # of an equal call, since clients retry after a lost answer
PATHS = "supported: GET /SESSION/v1/models and POST /SESSION/v1/chat/completions"
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Pending:
    """A call that waits for its answer."""

    request: Request
    answer: Future = field(default_factory=Future)  # bytes
    repeats: int = 0
    is_heard: bool = False  # a client was connected when the answer was sent


class Session:
    """The calls of an agent, one at a time, and its end."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self.token = url, token
        self.events: queue.SimpleQueue = queue.SimpleQueue()  # a Request, or how the agent ended
        self.lock = threading.Lock()
        self.last: Pending | None = None
        self.over: str | None = None  # why calls are refused from now on

    def ask(self, request: Request, client: socket.socket) -> bytes:
        """The answer to a call, after the policy's move. Raises Refusal, and OSError if the client
        disconnected."""
        with self.lock:
            pending = self._admit(request)
        answer = pending.answer.result()
        pending.is_heard |= not has_hung_up(client)
        return answer

    def _admit(self, request: Request) -> Pending:
        if self.over is not None:
            raise Refusal(403, self.over)
        last = self.last
        if last is not None and request.asks_what(last.request):
            last.repeats += 1
            if last.repeats > REPEATS:
                raise Refusal(400, f"this call was already answered {REPEATS} times")
            return last
        if last is not None and not last.answer.done():
            raise Refusal(
                400, "a session allows one call at a time; the previous one is unanswered"
            )
        self.last = Pending(request)
        self.events.put(request)
        return self.last

    def answer(self, body: bytes) -> None:
        """Answer the last call."""
        self.last.answer.set_result(body)

    def close(self, why: str) -> None:
        """Refuse further calls."""
        with self.lock:
            self.over = self.over or why
            if self.last is not None and not self.last.answer.done():
                self.last.answer.set_exception(Refusal(403, why))


class AgentServer(Server):
    """The server of the open sessions, by name."""

    def __init__(self, *, max_request_bytes: int) -> None:
        self.sessions: dict[str, Session] = {}
        self.told: set[str] = set()  # ignored settings already reported
        most = raise_file_limit() // FILES
        capacity = Capacity(max_request_bytes=max_request_bytes, max_connections=most)
        super().__init__((HOST, 0), AgentHandler, capacity=capacity)

    def tell_ignored(self, names: tuple[str, ...]) -> None:
        """Warn once about each setting that is ignored."""
        new = [name for name in names if name not in self.told]
        self.told.update(new)
        if new:
            log.warning(
                "environment: ignored %s of the agent: the run decides by rollout.temperature, "
                "rollout.max_new_tokens and rollout.stop",
                ", ".join(new),
            )


class AgentHandler(Handler):
    """A connection of an agent."""

    server: AgentServer

    def fault(self, line: str) -> bytes:
        return json.dumps({"error": {"message": " ".join(line.split()), "type": "tandem"}}).encode()

    def get(self) -> bytes:
        self._session("/v1/models")
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "tandem"}
        return json.dumps({"object": "list", "data": [model]}).encode()

    def post(self) -> bytes:
        session = self._session("/v1/chat/completions")
        try:
            request = read_request(self.body(self.length()))
        except ValueError as error:
            raise Refusal(400, str(error)) from None
        self.server.tell_ignored(request.ignored)
        answer = session.ask(request, self.connection)
        if not request.streams:
            return answer
        self.media_type = EVENTS
        return as_events(answer, counts_tokens=request.counts_tokens)

    def _session(self, path: str) -> Session:
        """The session in the path, if the caller has its key."""
        name = self.path.partition("?")[0].removesuffix(path).removeprefix("/")
        if not self.path.partition("?")[0].endswith(path):
            raise Refusal(404, PATHS)
        session = self.server.sessions.get(name)
        if session is None:
            raise Refusal(404, "no such session: it has ended or never existed")
        self.check_token(session.token)
        return session


class Endpoint:
    """The server of a world's sessions, which starts with the first session."""

    def __init__(self, *, max_request_bytes: int) -> None:
        self.max_request_bytes = max_request_bytes
        self.lock = threading.Lock()
        self.server: AgentServer | None = None

    def open(self) -> Session:
        """A session with its own name and key."""
        with self.lock:
            if self.server is None:
                self.server = AgentServer(max_request_bytes=self.max_request_bytes)
                serve = self.server.serve_forever
                threading.Thread(target=serve, args=(POLL,), daemon=True).start()
                weakref.finalize(self, _end, self.server)
        name = secrets.token_hex(8)
        session = Session(f"{self.server.url}/{name}/v1", secrets.token_urlsafe(24))
        self.server.sessions[name] = session
        return session

    def close(self, session: Session, why: str) -> None:
        """Refuse all further calls of a session."""
        session.close(why)
        self.server.sessions.pop(session.url.split("/")[-2], None)


def _end(server: AgentServer) -> None:
    server.shutdown()
    server.server_close()


def as_events(answer: bytes, *, counts_tokens: bool) -> bytes:
    """The body of a stream of one piece: a turn is sampled to its end before it is sent.

    `counts_tokens`: the last event holds the usage.
    """
    whole = json.loads(answer)
    events = [json.dumps(chunk) for chunk in chunks_of(whole, counts_tokens=counts_tokens)]
    return "".join(f"data: {event}\n\n" for event in (*events, "[DONE]")).encode()


def chunks_of(whole: Mapping, *, counts_tokens: bool) -> Iterator[Mapping]:
    """The turn, its finish reason and its usage."""
    same = {name: whole[name] for name in ("id", "created", "model")}
    same["object"] = "chat.completion.chunk"
    (choice,) = whole["choices"]
    said = dict(choice["message"])
    if calls := said.get("tool_calls"):
        said["tool_calls"] = [{"index": place, **call} for place, call in enumerate(calls)]
    parts = ((said, None), ({}, choice["finish_reason"]))
    for delta, why in parts:
        one = {"index": 0, "delta": delta, "finish_reason": why, "logprobs": None}
        yield same | {"choices": [one]}
    if counts_tokens:
        yield same | {"choices": [], "usage": whole["usage"]}
