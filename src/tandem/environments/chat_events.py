"""Event streams of the endpoint of agents, for clients that request one.

A turn is sampled to its end before it is sent, so it comes in one piece.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

EVENTS = "text/event-stream"


def as_events(answer: bytes, *, counts_tokens: bool) -> bytes:
    """The body of a stream. `counts_tokens`: its last event holds the usage."""
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
