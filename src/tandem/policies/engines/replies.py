"""Requests to a completions endpoint for one row, and the checks of its reply.

The names are those of vLLM's /v1/completions: `token_ids`, `prompt_token_ids` and tokens written
as `token_id:7` are its own additions to the OpenAI format.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from tandem.policies.language.records import Answers, Sampling

POSITIVE = 1e-4  # nats: no log-probability is above it, whatever its rounding
NEVER = -9999.0  # what vLLM writes for minus infinity, which JSON has no word for


class Row(NamedTuple):
    """One answer."""

    tokens: list[int]  # its end token too
    logp: list[float]  # nats of each
    truncated: bool  # the limit came before an end


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One row as it is asked for."""

    prompt: list[int]
    seed: int  # in 0 ... 2^63 - 1
    model: str  # by which name the weights are served
    sampling: Sampling
    ends: Sequence[int]  # end tokens
    vocabulary: int  # token ids are below it

    def payload(self) -> dict[str, object]:
        """Every number is sent: a server fills in what is missing from the model's own files."""
        return {
            "model": self.model,
            "prompt": self.prompt,
            "n": 1,
            "max_tokens": self.sampling.max_new_tokens,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "top_k": self.sampling.top_k,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": self.seed,
            "stop": list(self.sampling.stop),
            "stop_token_ids": list(self.ends),
            "ignore_eos": False,
            "skip_special_tokens": False,  # a stop string may name one
            "logprobs": 0,  # of the token that was taken, and of no other
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "add_special_tokens": False,
        }

    def row(self, reply: object) -> Row:
        """What the reply says. Raises ValueError where it is none, or one to another question."""
        choices = _part(reply, "choices", list)
        if len(choices) != 1:
            raise ValueError(f"{len(choices)} choices came where one was asked for")
        served = _part(reply, "model", str)
        if served != self.model:
            raise ValueError(f"the answer is one of model {served}, not of {self.model}")
        choice = choices[0]
        prompt = _part(choice, "prompt_token_ids", list)
        if prompt != self.prompt:
            raise ValueError("the answer is one to another prompt")
        tokens = self._tokens(_part(choice, "token_ids", list))
        said = _part(choice, "logprobs", dict)
        logp = _logp(_part(said, "token_logprobs", list), len(tokens))
        if _part(said, "tokens", list) != [f"token_id:{token}" for token in tokens]:
            raise ValueError("its log-probabilities are of other tokens than its answer has")
        return Row(tokens, logp, self._truncated(choice, tokens))

    def _tokens(self, tokens: list[object]) -> list[int]:
        limit = self.sampling.max_new_tokens
        if not 1 <= len(tokens) <= limit:
            raise ValueError(f"an answer of {len(tokens)} tokens came, and 1 to {limit} are right")
        odd = [t for t in tokens if type(t) is not int or not 0 <= t < self.vocabulary]
        if odd:
            raise ValueError(f"{odd[0]!r} is no token id of a vocabulary of {self.vocabulary}")
        if any(token in self.ends for token in tokens[:-1]):
            raise ValueError("the answer goes on behind an end token")
        return tokens

    def _truncated(self, choice: object, tokens: list[int]) -> bool:
        reason = _part(choice, "finish_reason", str)
        if reason == "length" and len(tokens) == self.sampling.max_new_tokens:
            return True
        if reason == "length":
            raise ValueError(
                f"an answer was cut off after {len(tokens)} of {self.sampling.max_new_tokens} "
                "tokens: the server's --max-model-len is too small"
            )
        if reason != "stop":
            raise ValueError(f"an answer was not finished: {reason}")
        if tokens[-1] not in self.ends and not self.sampling.stop:
            raise ValueError(f"an answer ends with token {tokens[-1]}, which is no end")
        return False


def _logp(said: list[object], count: int) -> list[float]:
    if len(said) != count:
        raise ValueError(f"{len(said)} log-probabilities came for {count} tokens")
    for value in said:
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{value!r} is no log-probability")
        if not NEVER < value <= POSITIVE:
            raise ValueError(f"{value!r} is no log-probability of a token that was sampled")
    return [float(value) for value in said]


def _part(whole: object, name: str, kind: type) -> object:
    """The part of a JSON object, of that kind."""
    if not isinstance(whole, Mapping) or not isinstance(whole.get(name), kind):
        raise ValueError(f"no {name} came")
    return whole[name]


def stack_rows(rows: Sequence[Row], device: torch.device) -> Answers:
    """Answers in the order of the rows; what replies do not say is left out."""
    width = max(len(row.tokens) for row in rows)
    blank = [0] * width
    tokens = [row.tokens + blank[len(row.tokens) :] for row in rows]
    logp = [row.logp + blank[len(row.logp) :] for row in rows]
    return Answers(
        tokens=torch.tensor(tokens, device=device),
        logp=torch.tensor(logp, device=device, dtype=torch.float32),
        entropy=None,
        length=torch.tensor([len(row.tokens) for row in rows], device=device),
        truncated=torch.tensor([row.truncated for row in rows], device=device),
    )
