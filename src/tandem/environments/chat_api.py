"""Chat completions for agents: requests, how one continues another, and answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tandem.environments.call_formats import CallFormat
from tandem.environments.protocol import Move
from tandem.environments.tool_calls import Refused, read_json, strip_thoughts

ROLES = {"developer": "system"} | {name: name for name in ("system", "user", "assistant", "tool")}
# Sampling settings, which the run defines.
SAMPLING = (
    "temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "stop", "seed",
    "frequency_penalty", "presence_penalty", "logit_bias", "response_format", "tool_choice",
    "min_p", "repetition_penalty", "reasoning_effort", "parallel_tool_calls",
    "chat_template_kwargs",
)  # fmt: skip
PARTS = "content must be text or a list of text parts"
UNWANTED = {
    "logprobs": "log-probabilities are not supported: leave logprobs out",
    "functions": "use tools instead of functions",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message of a conversation, with the tools that it calls."""

    role: str
    content: str
    calls: tuple[tuple[str, str], ...] = ()  # name and arguments in JSON, with sorted keys
    text: str | None = field(default=None, compare=False)  # of a move, as it was sampled

    @property
    def message(self) -> dict[str, str]:
        return {"role": self.role, "content": self.content}

    def is_echo_of(self, own: Turn) -> bool:
        """Whether it is a move echoed by a client, ignoring thoughts and surrounding blanks."""
        alike = self.role == own.role and self.calls == own.calls
        return alike and strip_thoughts(self.content) == strip_thoughts(own.content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request of an agent for the next turn of a conversation."""

    turns: tuple[Turn, ...]
    tools: tuple[Mapping, ...] = ()  # schemas
    model: str = ""
    ignored: tuple[str, ...] = ()  # sampling settings, which the run defines
    streams: bool = False  # the answer is a stream of events
    counts_tokens: bool = False  # the last event has the token counts

    def asks_what(self, other: Request) -> bool:
        """Whether both requests have the same answer."""
        return self.turns == other.turns and self.tools == other.tools


def read_request(body: bytes) -> Request:
    """The request in a body. Raises ValueError, with a reason for the client."""
    asked = read_json(body, "body")
    if not isinstance(asked, dict) or not isinstance(asked.get("messages"), list):
        raise ValueError("the body must be an object with a list of messages")
    for key, wrong in UNWANTED.items():
        if asked.get(key):
            raise ValueError(wrong)
    if asked.get("n") not in (None, 1):
        raise ValueError("a call has one answer: leave n out")
    turns = tuple(read_turn(one) for one in asked["messages"])
    if not turns or turns[-1].role == "assistant":
        raise ValueError("the last message must be of a user, a tool or the system")
    return Request(
        turns=turns,
        tools=read_tools(asked.get("tools")),
        model=str(asked.get("model") or ""),
        ignored=tuple(name for name in SAMPLING if asked.get(name) is not None),
        streams=bool(asked.get("stream")),
        counts_tokens=wants_usage(asked.get("stream_options") or {}),
    )


def wants_usage(options: object) -> bool:
    """Whether a stream should count its tokens. Raises ValueError for invalid options."""
    if not isinstance(options, dict):
        raise ValueError("stream_options must be an object")
    return bool(options.get("include_usage"))


def read_turn(message: object) -> Turn:
    """A message. Raises ValueError for an invalid one."""
    match message:
        case {"role": str(role)} if role in ROLES:
            return Turn(
                role=ROLES[role],
                content=read_content(message.get("content")),
                calls=read_tool_calls(message.get("tool_calls") or []),
            )
    raise ValueError(f"a message must have a role, one of {', '.join(ROLES)}")


def read_content(content: object) -> str:
    """A text, or the texts of its parts. Raises ValueError for anything else."""
    match content:
        case None:
            return ""
        case str():
            return require_encodable(content, "content")
        case list():
            return require_encodable("".join(map(read_part, content)), "content")
    raise ValueError(PARTS)


def read_part(part: object) -> str:
    """The text of a part of a content. Raises ValueError for anything else."""
    match part:
        case {"text": str(text)}:
            return text
    raise ValueError(PARTS)


def require_encodable(text: str, where: str) -> str:
    """The text. Raises ValueError if it cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where} contains an unpaired surrogate") from error
    return text


def read_tool_calls(calls: object) -> tuple[tuple[str, str], ...]:
    """Name and arguments of each call. Raises ValueError for anything but a list of calls."""
    if not isinstance(calls, list):
        raise ValueError("tool_calls must be a list")
    return tuple(map(read_tool_call, calls))


def read_tool_call(call: Mapping) -> tuple[str, str]:
    """Name and arguments. Raises ValueError for an invalid call."""
    try:
        function = call["function"]
        return function["name"], dump_arguments(json.loads(function["arguments"]))
    except (TypeError, KeyError, ValueError, RecursionError) as error:
        raise ValueError(
            "a tool call must be a function with name and arguments in JSON"
        ) from error


def read_tools(tools: object) -> tuple[Mapping, ...]:
    """Schemas of functions. Raises ValueError for anything else."""
    if not isinstance(tools, list | None):
        raise ValueError("tools is a list")
    for tool in tools or ():
        match tool:
            case {"function": {"name": str()}}:
                continue
        raise ValueError("a tool must be a function with a name")
    require_encodable(json.dumps(tools, ensure_ascii=False), "tools")
    return tuple(tools or ())


def dump_arguments(arguments: object) -> str:
    return json.dumps(arguments, sort_keys=True)


def continuation(known: Sequence[Turn], asked: Sequence[Turn]) -> Sequence[Turn] | None:
    """The messages of a request after a conversation; None: it does not continue it."""
    new = asked[len(known) :]
    if not new or any(one.role == "assistant" for one in new):
        return None
    for own, other in zip(known, asked, strict=False):
        if other != own and not (own.role == "assistant" and other.is_echo_of(own)):
            return None
    return new


def retold(asked: Sequence[Turn], moves: Sequence[Turn]) -> list[dict[str, str]]:
    """The messages of another conversation: calls of tools in it are shown as they were sampled.
    Raises ValueError for calls that the policy did not make."""
    return [{**one.message, "content": turn_text(one, moves)} for one in asked]


def turn_text(turn: Turn, moves: Sequence[Turn]) -> str:
    """The content of a turn. Raises ValueError for calls that are in none of the moves."""
    if not turn.calls:
        return turn.content
    for move in moves:
        if turn.is_echo_of(move):
            return move.text
    raise ValueError("showed tool_calls that the policy did not make")


def move_of(text: str, form: CallFormat | None, tools: Sequence[Mapping] = ()) -> Turn:
    """A move as its agent receives it, with calls of these tools. One with an invalid call is plain
    text."""
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    said = [] if form is None else [*form.calls_in(strip_thoughts(text), schemas)]
    if not said or any(isinstance(one, Refused) for one in said):
        return Turn(role="assistant", content=text, text=text)
    calls = tuple((name, dump_arguments(arguments)) for name, arguments in said)
    return Turn(role="assistant", content=form.remove(text).strip(), calls=calls, text=text)


def completion(turn: Turn, move: Move, model: str) -> bytes:
    """The answer to a request, without a time, so that equal runs get equal answers."""
    message: dict[str, object] = {"role": "assistant", "content": turn.content}
    if turn.calls:
        message["content"] = turn.content or None
        message["tool_calls"] = [
            {
                "id": f"call_{move.number}_{place}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for place, (name, arguments) in enumerate(turn.calls)
        ]
    why = "length" if move.truncated else "tool_calls" if turn.calls else "stop"
    choice = {"index": 0, "message": message, "finish_reason": why, "logprobs": None}
    usage = {
        "prompt_tokens": move.read,
        "completion_tokens": move.written,
        "total_tokens": move.read + move.written,
    }
    answer = {"id": f"chatcmpl-{move.number}", "object": "chat.completion", "created": 0}
    return json.dumps(answer | {"model": model, "choices": [choice], "usage": usage}).encode()
