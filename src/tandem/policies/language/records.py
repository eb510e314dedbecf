"""Records of a language policy: rows of tokens, and its description."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSample:
    """Rows of prompt and response, contiguous from column 0.

    Token t of a response is `tokens[b, prompt_length[b] + t]`; right of the last one stands 0.
    """

    tokens: Tensor  # [B, S] int64
    prompt_length: Tensor  # [B] int64
    temperature: Tensor  # [B] float32 that its log-probabilities are taken at, never 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What can be known of a policy before its weights are there."""

    kind: Literal["tokens", "flow"]
    provides: frozenset[str]  # the per-step fields it can fill
