"""Formats of tool calls: where a move has calls, and how their names and arguments are read.

The format of a model is found in the text that its chat template writes for a probe.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile

from tandem.environments.tool_calls import (
    Call,
    Refused,
    fits,
    is_unicode,
    read_calls,
    read_json,
)

# The format of Qwen and Hermes: a name and arguments in JSON. Its time is linear in the length of a
# move, as a policy that repeats one token until its limit needs.
CALL = r"<tool_call>(?P<call>(?:(?!<tool_call>).)*?)</tool_call>"
BEGUN = "<tool_call>"  # of a call that was cut before its end
NAMED = frozenset({"name", "arguments"})
# The call that templates write: a tool of two arguments, whose texts occur nowhere else.
NAME = "name_of_the_tool"
FIRST, SECOND = ("first_key", "text of it"), ("second_key", 271828)
PROBE: Call = (NAME, dict((FIRST, SECOND)))
KINDS = {FIRST[0]: {"type": "string"}, SECOND[0]: {"type": "integer"}}
TAKES = {
    "type": "object",
    "properties": {name: {**kind, "description": "One."} for name, kind in KINDS.items()},
    "required": [*KINDS],
}
SCHEMA = {
    "type": "function",
    "function": {"name": NAME, "description": "Any.", "parameters": TAKES},
}
UNKNOWN = (
    "the chat template writes no calls of tools, or in an unknown format; set "
    "environment.world.calls to the pattern of a call"
)
WORD = r"[\w.-]++"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """The format of calls outside thoughts.

    pattern: of a call. Its group `call` holds JSON of one or more; or `name` and `arguments` are
    those of one; or its groups are the arguments of the `only` tool.
    """

    pattern: re.Pattern
    begun: str | None  # text that begins a call, to detect one that was cut; None: it has none
    argument: re.Pattern | None = None  # of a `key` and a `value` in `arguments`; None: JSON
    only: str | None = None

    def calls_in(self, text: str, schemas: Mapping[str, Mapping]) -> Iterator[Call | Refused]:
        """The calls of a move, or why one is invalid. schemas: of the arguments, by tool."""
        for found in self.pattern.finditer(text):
            try:
                yield from self.read(found.groupdict(default=""), schemas)
            except Refused as refusal:
                yield refusal

    def read(self, groups: Mapping[str, str], schemas: Mapping[str, Mapping]) -> list[Call]:
        """The calls of one match. Raises Refused for an invalid one."""
        if self.only is not None:
            return [(self.only, read_texts(groups, schemas[self.only]))]
        if "call" in groups:
            return read_calls(groups["call"])
        name, arguments = groups["name"], groups["arguments"]
        if self.argument is None:
            return read_calls(f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}')
        texts = {one["key"]: one["value"] for one in self.argument.finditer(arguments)}
        return [(name, read_texts(texts, schemas.get(name, {})))]

    def remove(self, text: str) -> str:
        """The text without its calls."""
        return self.pattern.sub("", text)

    def is_cut(self, text: str) -> bool:
        """Whether a call was begun that is none."""
        return self.begun is not None and self.begun in self.remove(text)

    def reads(self, text: str) -> bool:
        """Whether it finds the probe as often as a text names it."""
        return [*self.calls_in(text, {NAME: TAKES})] == [PROBE] * text.count(NAME)


def given_format(calls: str | None, begun: str | None, tools: Mapping[str, Callable]) -> CallFormat:
    """The format of a pattern, or that of Qwen and Hermes. Raises ValueError for an invalid one.

    tools: the functions by name; the groups may be the arguments of a single one.
    """
    if calls is None:
        return CallFormat(pattern=re.compile(CALL, re.DOTALL), begun=begun or BEGUN)
    try:
        pattern = re.compile(calls, re.DOTALL)
    except re.error as error:
        raise ValueError(
            f"environment.world.calls={calls!r} is not a valid pattern: {error}"
        ) from error
    groups = {*pattern.groupindex}
    if "call" in groups or NAMED.issubset(groups):
        return CallFormat(pattern=pattern, begun=begun)
    only = next(iter(tools)) if len(tools) == 1 else None
    takes = () if only is None else inspect.signature(tools[only]).parameters
    if not groups or not groups.issubset(takes):
        raise ValueError(
            f"environment.world.calls={calls!r} has no group (?P<call>...), nor (?P<name>...) and "
            "(?P<arguments>...), nor groups that are the arguments of a single tool"
        )
    return CallFormat(pattern=pattern, begun=begun, only=only)


def read_texts(texts: Mapping[str, str], schema: Mapping) -> dict[str, object]:
    """Arguments from their texts, of the types that the tool asks for where they can be."""
    kinds = schema.get("properties") or {}
    return {name: read_text(text, kinds.get(name, {})) for name, text in texts.items()}


def read_text(text: str, schema: Mapping) -> object:
    """A text, or the value that it spells in JSON or, as some templates write it, in Python."""
    if fits(text, schema):
        return text
    for spelt in (text, text.lower()):
        with suppress(Refused):
            if fits(value := read_json(spelt, "value"), schema) and is_unicode(value):
                return value
    return text


def require_format(written: Iterable[tuple[str, str]], begun: str | None) -> CallFormat:
    """The format that is recognised, with another text that begins a call if one is given. Raises
    ValueError if there is none."""
    found = recognise(written)
    if found is None:
        raise ValueError(f"environment: {UNKNOWN}")
    return found if begun is None else replace(found, begun=begun)


def recognise(written: Iterable[tuple[str, str]]) -> CallFormat | None:
    """The format of the texts of one and of two calls of the probe; None: it is none of those that
    can be read."""
    for one, two in written:
        for found in (find_json(one), find_named_json(two), find_tagged(two)):
            if found is not None and NAME in one and found.reads(one) and found.reads(two):
                return found
    return None


def find_json(one: str) -> CallFormat | None:
    """JSON that holds the name, between two marks or as all of the move: Qwen, Hermes, Llama."""
    for place in (found.start() for found in re.finditer(r"[\[{]", one)):
        with suppress(ValueError):
            _, end = json.JSONDecoder().raw_decode(one, place)
            if NAME in (written := one[place:end]):
                break
    else:
        return None
    if begin := one[:place].strip():
        return format_between(begin, "(?P<call>{})", one[end:].strip())
    tokens = re.findall(r"\w+|[^\w\s]", written.partition(NAME)[0])
    opening = r"\s*".join(map(re.escape, tokens))
    pattern = rf"(?:\A|(?<=</think>))\s*(?P<call>{opening}.*)\Z"  # may follow thoughts
    return CallFormat(pattern=re.compile(pattern, re.DOTALL), begun=None)


def find_named_json(two: str) -> CallFormat | None:
    """A name, and its arguments in JSON: DeepSeek."""
    arguments = (
        r"\{\s*" + rf'"{FIRST[0]}":\s*"{FIRST[1]}",\s*"{SECOND[0]}":\s*{SECOND[1]}' + r"\s*\}"
    )
    match re.split(f"{NAME}|{arguments}", two):
        case [head, inner, between, _, tail]:
            begin, end = unit(head, between, tail)
            return format_between(
                begin, f"(?P<name>{WORD}){literal(inner)}(?P<arguments>{{}})", end
            )
    return None


def find_tagged(two: str) -> CallFormat | None:
    """A name, and a text for each argument: Qwen3-Coder, GLM."""
    texts = (NAME, *map(str, (*FIRST, *SECOND)))
    match re.split("|".join(texts), two):
        case [head, before, inner, behind, same, between, _, _, _, _, tail] if inner == same:
            first, last = unit(before, behind, tail)
            begin, end = unit(head, between[len(last) :], tail[len(last) :])
        case _:
            return None
    if not (first.strip() and last.strip() and inner.strip()):
        return None
    key = f"{literal(first)}(?P<key>{WORD}){literal(inner)}"
    another = f"{literal(first)}{WORD}{literal(inner)}"
    return format_between(
        begin,
        f"(?P<name>{WORD})(?P<arguments>{{}})",
        end,
        argument=re.compile(f"{key}(?P<value>(?:(?!{another}).)*?){literal(last)}", re.DOTALL),
    )


def format_between(
    begin: str, body: str, end: str, argument: re.Pattern | None = None
) -> CallFormat | None:
    """A format of calls between two marks; None: no mark, or a mere word, begins them. `body` has a
    place for everything up to the end."""
    begin = begin.strip()
    if not re.search(r"[^\w\s]", begin):
        return None
    opened = literal(begin)
    ended = literal(end.strip()) or rf"(?={opened}|\Z)"
    within = body.replace("{}", f"(?:(?!{opened}).)*?")
    pattern = re.compile(opened + within + ended, re.DOTALL)
    return CallFormat(pattern=pattern, begun=begin.splitlines()[0], argument=argument)


def unit(head: str, between: str, tail: str) -> tuple[str, str]:
    """What stands before and behind each of two alike, given the texts around them."""
    end = whole_tags(same_start(between, tail))
    rest = between[len(end) :]
    return same_start(head[::-1], rest[::-1])[::-1], end


def same_start(one: str, other: str) -> str:
    """The text with which both begin."""
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return "".join(letter for letter, _ in alike)


def whole_tags(text: str) -> str:
    """The text up to a tag that it cuts."""
    return re.sub(r"<[^<>]*\Z", "", text)


def literal(text: str) -> str:
    """The pattern of a text, whose blanks may be left out."""
    pieces = [piece for piece in re.split(r"(\s+)", text) if piece]
    return "".join(f"(?:{re.escape(p)})?" if p.isspace() else re.escape(p) for p in pieces)
