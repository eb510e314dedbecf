"""A comparison of two tokenizers: a teacher reads the token ids that its student wrote."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from tandem.policies.language.chat import Chat
from tandem.types import Prompt

SPECIAL = ("bos_token_id", "eos_token_id", "unk_token_id")
TEXT = "Sort 3, 1 and 2:\n  def f(x): return x**2  # naïve\n"
CONVERSATION = (
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "And twice that?"},
)


def first_difference(own: Chat, other: Chat) -> str | None:
    """The first difference between the policy's tokenizer and `other`; None: none was found.

    Compares the vocabularies, the ids of special tokens, and the ids of a text and of a
    conversation rendered by the chat template.
    """
    return next(differences(own, other), None)


def differences(own: Chat, other: Chat) -> Iterator[str]:
    """The differences, the most informative first."""
    vocabularies = (chat.tokenizer.get_vocab() for chat in (own, other))
    mine, its = ({number: token for token, number in v.items()} for v in vocabularies)
    for token_id in sorted({*mine} | {*its}):
        if (here := mine.get(token_id)) != (there := its.get(token_id)):
            said = f"{_describe(there)} there and {_describe(here)} in the policy's"
            yield f"token {token_id} is {said}"
    for name in SPECIAL:
        here, there = (getattr(chat.tokenizer, name) for chat in (own, other))
        if here != there:
            yield f"{name} is {there} there and {here} in the policy's"
    said = {
        "a text": Prompt(id=0, source="", text=TEXT),
        "a conversation": Prompt(id=0, source="", messages=CONVERSATION),
    }
    for what, prompt in said.items():
        pairs = zip_longest(*(chat.encode([prompt])[0] for chat in (own, other)))
        for place, (here, there) in enumerate(pairs):
            if here != there:
                yield f"token {place} of {what} has id {there} there and {here} in the policy's"


def _describe(token: str | None) -> str:
    return "missing" if token is None else repr(token)
