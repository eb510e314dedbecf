"""The bridge of a chat: the token ids between the end of a move and the beginning of the next one.

What was sampled is never decoded and encoded again: the way back is not unique in any BPE, and
templates rewrite earlier turns. So a history is the ids of the prompt, those that were sampled,
those of what the world said, and so on. A template is asked for the latter alone, behind stubs of
an assistant's turn, and must say the same behind each.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache

from tandem.policies.language import message_frames
from tandem.policies.language.chat import Chat
from tandem.policies.language.message_frames import Unreadable, around, marked, pieces_of, split
from tandem.policies.language.shortening import Shortener, plain_ids
from tandem.types import IMAGE, Picture, Prompt

Message = Mapping[str, str]
STUB = "stub of a move"
ASKED = {"role": "user", "content": "stub of a question"}
# Earlier turns of an assistant that some templates rewrite; what follows the last must not depend
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
REMEMBERED = 1024  # answers of a world whose ids are kept


class Bridge:
    """What a tokenizer and its chat template write between two moves."""

    def __init__(
        self, chat: Chat, ends: Sequence[int], *, limit: int, tools: Sequence[Mapping] = ()
    ) -> None:
        """limit: tokens of one message, which loses its middle if it has more; tools: schemas that
        the template shows.

        Raises ValueError for a template that does not say the same behind every turn.
        """
        self.chat, self.ends, self.tokenizer = chat, frozenset(ends), chat.tokenizer
        self.tools = tools
        self.shortened = Shortener(self.tokenizer, limit)
        self.remembered = lru_cache(REMEMBERED)(self.said_by)  # worlds repeat themselves
        self.has_template = chat.template is not None
        self.special = {*self.tokenizer.all_special_ids, *self.ends} - {chat.unknown}
        self.end = [] if self.tokenizer.eos_token_id is None else [self.tokenizer.eos_token_id]
        if self.has_template:
            self.end = self.check_template()

    def between(
        self, messages: Sequence[Message], move: Sequence[int], images: Sequence[Picture] = ()
    ) -> list[int]:
        """The ids behind a move: its end, if it has none yet, and what the world says to it."""
        ended = bool(move) and move[-1] in self.ends
        short = tuple((one["role"], one["content"]) for one in self.short(messages, images))
        with self.readable():
            return [*([] if ended else self.end), *self.remembered(short, tuple(images))]

    def short(
        self, messages: Sequence[Message], images: Sequence[Picture] = ()
    ) -> list[dict[str, str]]:
        """The messages, none longer than the limit; of those with pictures, none of its texts."""
        cut = self.shortened
        if not images:
            return [{**one, "content": cut(one["content"])} for one in messages]
        return [{**one, "content": IMAGE.join(map(cut, split(one)))} for one in messages]

    def said_by(
        self, messages: tuple[tuple[str, str], ...], images: tuple[Picture, ...]
    ) -> tuple[int, ...]:
        """The ids of pairs of role and content, and of pictures."""
        said = [{"role": role, "content": content} for role, content in messages]
        return tuple(message_frames.encoded(self, said, images) if images else self.said(said))

    def said(self, messages: Sequence[Message]) -> list[int]:
        """The ids of messages, behind an end token; special tokens in them are plain text."""
        if not messages:
            return self.written(self.tail([])) if self.has_template else []
        if not self.has_template:
            return self.plain("\n\n".join(message["content"] for message in messages))
        if not any(self.misleads(message["content"]) for message in messages):
            return self.written(self.tail(messages))
        first, *rest = around(messages, self.tail(marked(messages)))
        return [*self.written(first), *self.pieces(messages, rest)]

    def opened(
        self, prompt: Prompt, messages: Sequence[Message], images: Sequence[Picture] = ()
    ) -> list[int]:
        """The ids of a prompt and of what the world says before the first move; special tokens in
        that are plain text."""
        short = self.short(messages, images)
        with self.readable():
            asked = self.continued(prompt, short)
            if images:
                if any(self.misleads(piece["content"]) for piece in pieces_of(short)):
                    raise Unreadable("an opening with pictures spells a special token")
                return self.chat.encode([replace(asked, images=(*prompt.images, *images))])[0]
            return self.framed(short, asked, self.continued(prompt, marked(short)), self.chat)

    def prompt_of(self, messages: Sequence[Message], tools: Sequence[Mapping]) -> list[int]:
        """The ids of what a world says in place of a prompt, whole; special tokens in it are plain
        text. `tools`: schemas that the template shows. Raises Unreadable."""
        chat = copy.copy(self.chat)
        chat.tools_of = lambda prompt: tools or self.tools
        asked, frame = (
            Prompt(id=0, source="", messages=tuple(said)) for said in (messages, marked(messages))
        )
        with self.readable():
            if tools and self.misleads(json.dumps(list(tools), ensure_ascii=False)):
                raise Unreadable("the tools of the first call spell a special token")
            if tools and tools[0]["function"]["name"] not in chat.text(frame):
                raise Unreadable("the chat template shows no tools; set model.chat_template=FILE")
            return self.framed(messages, asked, frame, chat)

    def framed(
        self, messages: Sequence[Message], asked: Prompt, frame: Prompt, chat: Chat
    ) -> list[int]:
        """The ids of a prompt that ends with messages; `frame` has marks in their places."""
        ids = chat.encode([asked])[0]
        if self.count_special(ids) == self.count_special(chat.encode([frame])[0]):
            return ids
        first, *rest = around(messages, chat.text(frame))
        return [*chat.encode([frame], [first])[0], *self.pieces(messages, rest)]

    @contextmanager
    def readable(self) -> Iterator[None]:
        """A block that raises Unreadable for whatever the template has against messages: it raises
        for wrong roles, and fails in ways of its own on schemas that are none."""
        try:
            yield
        except Unreadable:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise Unreadable(f"the chat template refuses what was said: {why}") from None

    def continued(self, prompt: Prompt, messages: Sequence[Message]) -> Prompt:
        """The question, and what the world says behind it."""
        if prompt.messages is None:
            said = "\n\n".join(message["content"] for message in messages)
            return replace(prompt, text=prompt.text + said)
        return replace(prompt, messages=(*self.chat.question(prompt), *messages))

    def pieces(self, messages: Sequence[Message], behind: Sequence[str]) -> Iterator[int]:
        """Messages, which are encoded as plain text, and what is written behind each."""
        for message, text in zip(messages, behind, strict=True):
            yield from self.plain(message["content"])
            yield from self.written(text)

    def tail(self, messages: Sequence[Message], stub: Sequence[Message] | None = None) -> str:
        """What the template writes behind the end of an assistant's turn."""
        turns = STUBS["a plain"] if stub is None else stub
        return self.behind(turns, messages).removeprefix(self.end_text)

    def behind(self, turns: Sequence[Message], messages: Sequence[Message]) -> str:
        """All that the template writes behind the text of the last of an assistant's turns."""
        whole = self.render([ASKED, *turns, *messages])
        return whole.rpartition(STUB)[2]

    @property
    def end_text(self) -> str:
        return self.tokenizer.decode(self.end) if self.end else ""

    def check_template(self) -> list[int]:
        """The ids that end an assistant's turn, once it is known that one tail fits all turns."""
        tail = self.behind(STUBS["a plain"], [ANSWERED])
        ids = self.written(tail)
        if not ids or ids[0] not in self.ends:
            raise ValueError(self.refusal("a plain", "writes no end token behind it"))
        if self.tools:
            self.check_tools()
        for name, turns in STUBS.items():
            if not self.render([ASKED, *turns, ANSWERED]).endswith(tail):
                raise ValueError(self.refusal(name, "goes on otherwise behind it"))
        return ids[:1]

    def check_tools(self) -> None:
        """Refuse a template that tells the policy of no tools, or shows no answer of one."""
        from jinja2 import TemplateError

        told = self.render([ASKED])
        name = self.tools[0]["function"]["name"]
        try:
            answered = name in told and ANSWERED["content"] in self.tail([FROM_TOOL])
        except TemplateError:
            answered = False
        if not answered:
            raise ValueError(
                "environment: the chat template shows no tools, or none of their answers; set "
                "model.chat_template=FILE to one that does"
            )

    def refusal(self, name: str, why: str) -> str:
        return (
            f"environment: the chat template cannot be continued exactly: of {name} turn of the "
            f"assistant it {why}; set model.chat_template=FILE to one that does, or "
            "environment=none"
        )

    @property
    def rewrites(self) -> bool:
        """Whether the template would show an earlier thought otherwise than it was sampled."""
        turns = STUBS["a thinking"]
        return self.has_template and turns[0]["content"] not in self.render(
            [ASKED, *turns, ANSWERED]
        )

    def render(self, messages: Sequence[Message]) -> str:
        """What the template makes of messages, with the tools that there are."""
        return self.chat.render(messages, self.tools)

    def misleads(self, content: str) -> bool:
        """Whether it spells a special token, which would be one to the tokenizer, or our stub."""
        return STUB in content or self.count_special(self.written(content)) > 0

    def count_special(self, ids: Sequence[int]) -> int:
        return sum(one in self.special for one in ids)

    def written(self, text: str) -> list[int]:
        """Ids of what a template writes, whose special tokens are such."""
        return self.chat.ids([text], special=False)[0]

    def plain(self, text: str) -> list[int]:
        """Ids of a text that somebody says: no special token is in it."""
        ids = plain_ids(self.tokenizer, text)
        if {*ids}.intersection(self.chat.banned):  # of a tokenizer of words
            raise Unreadable("what is said spells an image token of the model")
        return ids
