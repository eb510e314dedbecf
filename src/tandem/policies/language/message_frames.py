"""Frames of messages: the template's text around each message, with a mark in its place.

So the environment's text is encoded as plain text and its images as image tokens, whatever the
template does with them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

from tandem.environments.call_formats import PROBE, SCHEMA, same_start, whole_tags
from tandem.environments.protocol import Message
from tandem.environments.tool_calls import strip_thoughts
from tandem.hub import find_turn_end
from tandem.policies.language.chat import Chat
from tandem.policies.language.chat_template import TemplateFault
from tandem.types import IMAGE, Picture, Prompt

if TYPE_CHECKING:
    from tandem.policies.language.bridge import Bridge

log = logging.getLogger(__name__)

SHOWN = 60  # last characters of a text in a message
MARK = "stub {} of what is said"
STUB = "stub of a move"
ASKED = {"role": "user", "content": "stub of a question"}
# Earlier assistant turns that some templates rewrite; the text after the last turn must not depend
# on them.
STUBS: Mapping[str, Sequence[Message]] = {
    "a plain": ({"role": "assistant", "content": STUB},),
    "a thinking": (
        {"role": "assistant", "content": f"<think>\nstub of a thought\n</think>\n\n{STUB}"},
    ),
    "an empty": ({"role": "assistant", "content": ""},),
    "a second": (
        {"role": "assistant", "content": "stub of an earlier move"},
        ASKED,
        {"role": "assistant", "content": STUB},
    ),
}
ANSWERED = {"role": "user", "content": "stub of an answer"}
FROM_TOOL = {"role": "tool", "content": ANSWERED["content"]}


class Unreadable(ValueError):
    """Why a policy cannot read an observation."""


def end_answers(chat: Chat, ends: Sequence[int]) -> None:
    """Let answers in the chat end as its template ends a turn, and warn of what else it does. ends:
    those of the model."""
    if chat.template is None:
        return
    if "strftime_now" in str(chat.template):
        log.warning(
            "the chat template writes the date of today, so a run that is resumed or repeated on "
            "another day reads other prompts; set model.chat_template to a copy with a fixed date"
        )
    said = Prompt(id=0, source="", messages=(ASKED, *STUBS["a plain"], ANSWERED))
    # A template that refuses a second question may still render prompts.
    with suppress(TemplateFault):
        chat.turn_end = find_turn_end(chat.tokenizer, chat.text(said), STUB, ends)
        chat.unlike = describe_header(chat)


def describe_header(chat: Chat) -> str | None:
    """How an answer behind a prompt differs from one that the template writes; None: not at all."""
    asked = chat.render([ASKED])
    written, _, _ = chat.render([ASKED, *STUBS["a plain"]]).partition(STUB)
    if written == asked:
        return None
    return (
        f"demonstrations are trained as {(asked + STUB)[-SHOWN:]!r}, but the chat template writes "
        f"{(written + STUB)[-SHOWN:]!r}; set model.enable_thinking=false if that makes them equal, "
        "or a model.chat_template of your own"
    )


def write_calls(bridge: Bridge) -> Iterator[tuple[str, str]]:
    """The texts of one and of two calls of the probe as moves, with each empty content that the
    template accepts; one that accepts a single call writes that twice."""
    for content in ("", None):
        with suppress(TemplateFault):
            one = two = write_turn(bridge, content, 1)
            with suppress(TemplateFault):
                two = write_turn(bridge, content, 2)
            yield one, two


def write_turn(bridge: Bridge, content: str | None, count: int) -> str:
    """The text of `count` calls, as a move that makes them is decoded. Raises TemplateFault."""
    render = partial(bridge.chat.render, tools=[SCHEMA])
    before, _, behind = render([ASKED, *STUBS["a plain"]]).partition(STUB)
    try:
        whole = render([ASKED, call_probe(content, PROBE[1], count)])
    except TemplateFault:  # it adds texts
        whole = render([ASKED, call_probe(content, json.dumps(PROBE[1]), count)])
    header = whole_tags(same_start(before, whole))
    ids = bridge.template_ids(whole[len(header) :].removesuffix(behind))
    ends = {*bridge.ends, *bridge.end}
    (text,) = bridge.chat.decode([list(takewhile(lambda one: one not in ends, ids))])
    return strip_thoughts(text)


def call_probe(content: str | None, arguments: Mapping | str, count: int) -> dict[str, object]:
    """A turn of the assistant that calls the probe."""
    function = {"name": PROBE[0], "arguments": arguments}
    call = {"id": "call00001", "type": "function", "function": function}
    return {"role": "assistant", "content": content, "tool_calls": [call] * count}


def with_marks(messages: Sequence[Message]) -> list[Message]:
    """The messages with a mark in place of each content."""
    return [{**one, "content": MARK.format(place)} for place, one in enumerate(messages)]


def cut(messages: Sequence[Message], frame: str) -> list[str]:
    """The template's text before the first mark, between marks, and after the last."""
    parts = []
    for one, mark in zip(messages, with_marks(messages), strict=True):
        before, found, frame = frame.partition(mark["content"])
        if not found:
            raise Unreadable(f"the chat template omits a message of role {one['role']}")
        parts.append(before)
    return [*parts, frame]


def encode(bridge: Bridge, messages: Sequence[Message], images: Sequence[Picture]) -> list[int]:
    """The ids of messages after an end token; images are at their marks."""
    pieces = list(pieces_of(messages))
    places = iter(with_marks(pieces))
    framed = [
        {**one, "content": IMAGE.join(next(places)["content"] for _ in split(one))}
        for one in messages
    ]
    first, *behind = cut(pieces, frame(bridge, framed))
    left = iter(images)
    ids = bridge.template_ids(bridge.chat.with_pictures(first, left))
    for piece, text in zip(pieces, behind, strict=True):
        ids += bridge.plain(piece["content"])
        ids += bridge.template_ids(bridge.chat.with_pictures(text, left))
    return ids


def frame(bridge: Bridge, messages: Sequence[Message]) -> str:
    """The template's text of messages after an end token, with the processor's image marks."""
    if bridge.has_template:
        return bridge.tail([bridge.chat.as_parts(one) for one in messages])
    return "\n\n".join(bridge.chat.with_marks(one["content"]) for one in messages)


def pieces_of(messages: Sequence[Message]) -> Iterator[Message]:
    """The texts between images, as separate messages."""
    for one in messages:
        for piece in split(one):
            yield {"role": one["role"], "content": piece}


def split(message: Message) -> list[str]:
    return message["content"].split(IMAGE)


def count_marks(messages: Sequence[Message]) -> int:
    """The number of images in messages."""
    return sum(one["content"].count(IMAGE) for one in messages)
