"""The shortening of long messages: they lose their middle, and say so."""

from __future__ import annotations

from typing import Any

LEFT_OUT = "[... {} characters left out ...]"
BRIEFLY = "..."  # where a limit has no room for more
PER_TOKEN = 16  # characters that are looked at for each token that a message may have


def plain_ids(tokenizer: Any, text: str) -> list[int]:
    """Ids of a text that somebody says: no special token is in it."""
    return tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


class Shortener:
    """A limit on the tokens of a message."""

    def __init__(self, tokenizer: Any, limit: int) -> None:
        self.tokenizer, self.limit = tokenizer, limit

    def __call__(self, content: str) -> str:
        """The message without its middle, where it has more than `limit` tokens; it says so."""
        if len(content.encode()) <= self.limit:  # a token is a byte or more
            return content
        if len(content) <= self.most and len(plain_ids(self.tokenizer, content)) <= self.limit:
            return content
        return self.without_middle(content)

    def without_middle(self, content: str) -> str:
        """The beginning and the end of a text, up to `limit` tokens with what stands between."""
        head, tail = content[: self.most // 2], content[-(self.most // 2) :]
        first, last = plain_ids(self.tokenizer, head), plain_ids(self.tokenizer, tail)
        needed = len(plain_ids(self.tokenizer, LEFT_OUT.format(len(content))))
        said = LEFT_OUT if 2 * needed <= self.limit else BRIEFLY
        half = (self.limit - len(plain_ids(self.tokenizer, said.format(len(content))))) // 2
        text = content
        # What is put together may have other tokens, and half a character more of them.
        while half >= 0 and (text is content or len(plain_ids(self.tokenizer, text)) > self.limit):
            before = self.tokenizer.decode(first[:half])
            behind = self.tokenizer.decode(last[len(last) - half :])
            left_out = len(content) - len(before) - len(behind)
            text, half = f"{before}{said.format(left_out)}{behind}", half - 1
        return text

    @property
    def most(self) -> int:
        """Characters that are looked at."""
        return self.limit * PER_TOKEN
