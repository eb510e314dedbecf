"""Chat bridge: the token ids between the end of one move and the beginning of the next.

Sampled ids are never decoded and encoded again: in any BPE the round trip may change them, and
templates rewrite earlier turns. A history is the ids of the prompt, those of each move, and those
of each observation. The template renders observations alone, after stub turns of the assistant, and
must render the same text after each stub.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache

from tandem.environments.protocol import Message
from tandem.policies.language import message_frames
from tandem.policies.language.chat import Chat
from tandem.policies.language.chat_template import TemplateFault
from tandem.policies.language.message_frames import (
    ANSWERED,
    ASKED,
    FROM_TOOL,
    STUB,
    STUBS,
    Unreadable,
    cut,
    pieces_of,
    split,
    with_marks,
)
from tandem.policies.language.shortening import Shortener
from tandem.policies.language.special_tokens import flag, plain_ids, special_ids
from tandem.types import IMAGE, Picture, Prompt

REMEMBERED = 1024  # observations whose ids are cached


class Bridge:
    """The text that a tokenizer and its chat template write between two moves."""

    def __init__(
        self, chat: Chat, ends: Sequence[int], *, limit: int, tools: Sequence[Mapping] = ()
    ) -> None:
        """limit: tokens per message, whose middle is left out if it is longer; tools: schemas that
        the template renders.

        Raises ValueError for a template that does not write the same text after every turn.
        """
        self.chat, self.tools, self.ends = chat, tools, frozenset(ends)
        self.tokenizer = chat.tokenizer
        self.remembered = lru_cache(REMEMBERED)(self.encode_pairs)  # environments repeat themselves
        self.has_template = chat.template is not None
        self.end = [] if chat.turn_end is None else [chat.turn_end]
        if self.has_template:
            try:
                self.check_template()
            except TemplateFault as error:
                raise ValueError(self.refusal("a", f"is refused ({error})")) from error
        written = self.written_ids() if self.has_template else ()
        self.special = (special_ids(self.tokenizer, written) | self.ends) - {chat.unknown}
        self.plain_tokenizer = flag(self.tokenizer, self.special)
        self.shortened = Shortener(self.plain_tokenizer, limit)

    def turn_ids(
        self, messages: Sequence[Message], move: Sequence[int], images: Sequence[Picture] = ()
    ) -> list[int]:
        """The ids after a move: its end token, if it lacks one, and the observation."""
        ended = bool(move) and move[-1] in self.ends
        short = tuple((one["role"], one["content"]) for one in self.short(messages, images))
        with self.readable():
            return [*([] if ended else self.end), *self.remembered(short, tuple(images))]

    def short(
        self, messages: Sequence[Message], images: Sequence[Picture] = ()
    ) -> list[dict[str, str]]:
        """The messages within the limit; with images, each of their texts is within it."""
        cut = self.shortened
        if not images:
            return [{**one, "content": cut(one["content"])} for one in messages]
        return [{**one, "content": IMAGE.join(map(cut, split(one)))} for one in messages]

    def encode_pairs(
        self, messages: tuple[tuple[str, str], ...], images: tuple[Picture, ...]
    ) -> tuple[int, ...]:
        """The ids of (role, content) pairs and images."""
        said = [{"role": role, "content": content} for role, content in messages]
        return tuple(message_frames.encode(self, said, images) if images else self.encode(said))

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """The ids of messages after an end token; special tokens in them are plain text."""
        if not messages:
            return self.template_ids(self.tail([])) if self.has_template else []
        if not self.has_template:
            return self.plain("\n\n".join(message["content"] for message in messages))
        if not any(self.misleads(message["content"]) for message in messages):
            return self.template_ids(self.tail(messages))
        first, *rest = cut(messages, self.tail(with_marks(messages)))
        return [*self.template_ids(first), *self.pieces(messages, rest)]

    def opening_ids(
        self, prompt: Prompt, messages: Sequence[Message], images: Sequence[Picture] = ()
    ) -> list[int]:
        """The ids of a prompt and of the environment's opening; special tokens in the opening are
        plain text."""
        short = self.short(messages, images)
        with self.readable():
            asked = self.extend(prompt, short)
            if images:
                if any(self.misleads(piece["content"]) for piece in pieces_of(short)):
                    raise Unreadable("an opening with images contains a special token")
                return self.chat.encode([replace(asked, images=(*prompt.images, *images))])[0]
            return self.fill_frame(short, asked, self.extend(prompt, with_marks(short)), self.chat)

    def prompt_of(self, messages: Sequence[Message], tools: Sequence[Mapping]) -> list[int]:
        """The ids of messages that replace the prompt; special tokens in them are plain text.
        `tools`: schemas that the template renders. Raises Unreadable."""
        chat = copy.copy(self.chat)
        chat.tools_of = lambda prompt: tools or self.tools
        asked, frame = (
            Prompt(id=0, source="", messages=tuple(said))
            for said in (messages, with_marks(messages))
        )
        with self.readable():
            if tools and self.misleads(json.dumps(list(tools), ensure_ascii=False)):
                raise Unreadable("the tools of the first call contain a special token")
            if tools and tools[0]["function"]["name"] not in chat.text(frame):
                raise Unreadable("the chat template renders no tools; set model.chat_template=FILE")
            return self.fill_frame(messages, asked, frame, chat)

    def fill_frame(
        self, messages: Sequence[Message], asked: Prompt, frame: Prompt, chat: Chat
    ) -> list[int]:
        """The ids of a prompt that ends with messages; `frame` has marks in their place."""
        if not any(IMAGE in one["content"] for one in messages):  # which has no image here
            ids = chat.encode([asked])[0]
            if self.count_special(ids) == self.count_special(chat.encode([frame])[0]):
                return ids
        first, *rest = cut(messages, chat.text(frame))
        begun = chat.encode([frame], [first])[0]
        return chat.with_images([*begun, *self.pieces(messages, rest)], frame.images, begun)

    @contextmanager
    def readable(self) -> Iterator[None]:
        """A context that raises Unreadable if the template rejects messages: it raises for wrong
        roles, and fails in various ways on invalid schemas."""
        try:
            yield
        except Unreadable:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise Unreadable(f"the chat template rejects the observation: {why}") from None

    def extend(self, prompt: Prompt, messages: Sequence[Message]) -> Prompt:
        """The prompt, followed by the messages of the environment."""
        if prompt.messages is None:
            said = "\n\n".join(message["content"] for message in messages)
            return replace(prompt, text=prompt.text + said)
        return replace(prompt, messages=(*self.chat.question(prompt), *messages))

    def pieces(self, messages: Sequence[Message], behind: Sequence[str]) -> Iterator[int]:
        """Ids of messages as plain text, and of the template's text after each."""
        for message, text in zip(messages, behind, strict=True):
            yield from self.plain(message["content"])
            yield from self.template_ids(text)

    def tail(self, messages: Sequence[Message]) -> str:
        """The template's text after the end of an assistant turn."""
        return self.behind(STUBS["a plain"], messages).removeprefix(self.end_text)

    def behind(self, turns: Sequence[Message], messages: Sequence[Message]) -> str:
        """The template's text after the content of the last assistant turn."""
        whole = self.render([ASKED, *turns, *messages])
        return whole.rpartition(STUB)[2]

    @property
    def end_text(self) -> str:
        return self.tokenizer.decode(self.end) if self.end else ""

    def check_template(self) -> None:
        """Raise ValueError unless one tail, which begins with the end of a turn, fits all turns."""
        tail = self.behind(STUBS["a plain"], [ANSWERED])
        if self.template_ids(tail)[:1] != [self.chat.turn_end]:
            raise ValueError(self.refusal("a plain", "is not followed by an end token"))
        if self.tools:
            self.check_tools()
        for name, turns in STUBS.items():
            if not self.render([ASKED, *turns, ANSWERED]).endswith(tail):
                raise ValueError(self.refusal(name, "is followed by a different text"))

    def written_ids(self) -> set[int]:
        """The ids that the template writes around messages, tools and their replies."""
        said = [ANSWERED, FROM_TOOL] if self.tools else [ANSWERED]
        texts = [self.render([ASKED, *STUBS["a plain"], one]) for one in said]
        return {one for text in texts for one in self.template_ids(text)}

    def check_tools(self) -> None:
        """Raise ValueError if the template renders no tools, or no replies of tools."""
        told = self.render([ASKED])
        name = self.tools[0]["function"]["name"]
        try:
            answered = name in told and ANSWERED["content"] in self.tail([FROM_TOOL])
        except TemplateFault:
            answered = False
        if not answered:
            raise ValueError(
                "environment: the chat template renders no tools, or no replies of tools; set "
                "model.chat_template=FILE to one that does"
            )

    def refusal(self, name: str, why: str) -> str:
        return (
            f"environment: the chat template cannot be continued exactly: {name} turn of the "
            f"assistant {why}; set model.chat_template=FILE to one that can, or environment=none"
        )

    @property
    def rewrites(self) -> bool:
        """Whether the template renders earlier thoughts differently from how they were sampled."""
        (turn,) = STUBS["a thinking"]
        return self.has_template and turn["content"] not in self.render([ASKED, turn, ANSWERED])

    def render(self, messages: Sequence[Message]) -> str:
        """The template's text of messages, with the tools."""
        return self.chat.render(messages, self.tools)

    def misleads(self, content: str) -> bool:
        """Whether it contains a special token, which the tokenizer would parse, or our stub."""
        return STUB in content or self.count_special(self.template_ids(content)) > 0

    def count_special(self, ids: Sequence[int]) -> int:
        return sum(one in self.special for one in ids)

    def template_ids(self, text: str) -> list[int]:
        """Ids of a template's text; special tokens are parsed."""
        return self.chat.ids([text], special=False)[0]

    def plain(self, text: str) -> list[int]:
        """Ids of a text of the environment, without special tokens."""
        ids = plain_ids(self.plain_tokenizer, text)
        if {*ids}.intersection(self.chat.banned):  # possible with a tokenizer of whole words
            raise Unreadable("the observation contains an image token of the model")
        return ids
