"""Shortening of long messages: the middle is left out and a note takes its place."""

from __future__ import annotations

from typing import Any

from tandem.policies.language.special_tokens import plain_ids

LEFT_OUT = "[... {} characters left out ...]"
BRIEFLY = "..."  # if the limit has no room for the note
PER_TOKEN = 16  # characters that are tokenized per token of the limit


class Shortener:
    """A token limit on messages."""

    def __init__(self, tokenizer: Any, limit: int) -> None:
        self.tokenizer, self.limit = tokenizer, limit

    def __call__(self, content: str) -> str:
        """The message, without its middle if it has more than `limit` tokens."""
        if len(content.encode()) <= self.limit:  # a token is at least one byte
            return content
        if len(content) <= self.most and len(plain_ids(self.tokenizer, content)) <= self.limit:
            return content
        return self.without_middle(content)

    def without_middle(self, content: str) -> str:
        """The beginning and the end of a text, with a note between, in `limit` tokens."""
        head, tail = content[: self.most // 2], content[-(self.most // 2) :]
        first, last = plain_ids(self.tokenizer, head), plain_ids(self.tokenizer, tail)
        needed = len(plain_ids(self.tokenizer, LEFT_OUT.format(len(content))))
        said = LEFT_OUT if 2 * needed <= self.limit else BRIEFLY
        half = (self.limit - len(plain_ids(self.tokenizer, said.format(len(content))))) // 2
        text = content
        # The joined text may be tokenized differently, into more tokens.
        while half >= 0 and (text is content or len(plain_ids(self.tokenizer, text)) > self.limit):
            before = self.tokenizer.decode(first[:half])
            behind = self.tokenizer.decode(last[len(last) - half :])
            left_out = len(content) - len(before) - len(behind)
            text, half = f"{before}{said.format(left_out)}{behind}", half - 1
        return text

    @property
    def most(self) -> int:
        """Characters that are tokenized."""
        return self.limit * PER_TOKEN
