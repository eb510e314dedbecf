"""Special tokens: those that no text of an environment may become."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any


def special_ids(tokenizer: Any, written: Collection[int]) -> set[int]:
    """The tokens that are named, flagged as special, or added to the vocabulary and `written` by
    the chat template: DeepSeek's <|User|> is not flagged."""
    added = tokenizer.added_tokens_decoder
    flagged = {number for number, token in added.items() if token.special}
    # Gemma adds line ends, which texts of an environment may have.
    roles = {number for number in added.keys() & set(written) if added[number].content.strip()}
    return {*tokenizer.all_special_ids, *flagged, *roles}


def flag(tokenizer: Any, special: Collection[int]) -> Any:
    """The tokenizer with all of the `special` tokens flagged, so that `plain_ids` splits them: a
    copy if some are not, as the original keeps those in the text that rewards read."""
    added = tokenizer.added_tokens_decoder
    unflagged = [token.content for i, token in added.items() if i in special and not token.special]
    if not unflagged:
        return tokenizer
    own = copy.deepcopy(tokenizer)
    own.add_tokens(unflagged, special_tokens=True)
    return own


def plain_ids(tokenizer: Any, text: str) -> list[int]:
    """Ids of a text, in which no token that is flagged as special is parsed."""
    return tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
