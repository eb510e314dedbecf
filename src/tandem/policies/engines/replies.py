"""Requests for one row to either endpoint of vLLM, and checks of its replies.

`/inference/v1/generate` takes and returns token ids, and reports the weights of each token. Every
server has `/v1/completions`: `token_ids`, `prompt_token_ids` and tokens written as `token_id:7` are
vLLM's own additions to the OpenAI format.
"""

from __future__ import annotations

import base64
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import UnionType
from typing import ClassVar

from tandem.data.decoding import as_png
from tandem.policies.engines.answer_checks import POSITIVE
from tandem.policies.engines.reply_rows import Row, Span
from tandem.policies.language.records import PromptIds, Sampling
from tandem.types import Picture

NO_CHANCE = -100.0  # the lowest valid logit_bias
SHOWN = 64  # encoded pictures that are cached: the rows of a group have the same ones
NEVER = -9999.0  # vLLM's number for minus infinity, which JSON does not have


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(ABC):
    """The request for one row."""

    prompt: list[int]
    seed: int  # in 0 ... 2^63 - 1
    model: str  # the name under which the weights are served
    sampling: Sampling
    ends: Sequence[int]  # end tokens
    vocabulary: int  # token ids are below it
    version: str = "none"  # of the weights: prompts that other versions cached are not used
    # Of a prompt with pictures: those, and its ids as sent to the server, with one token for each.
    images: Sequence[Picture] = ()
    marked: Sequence[int] = ()
    banned: Sequence[int] = ()  # tokens that are never sampled

    path: ClassVar[str]  # of the endpoint

    @abstractmethod
    def payload(self) -> dict[str, object]:
        """All sampling parameters: a server takes missing ones from the model's files."""

    @abstractmethod
    def row(self, reply: object) -> Row:
        """The row in a reply. Raises ValueError for an invalid reply, or one to another request."""

    def _numbers(self) -> dict[str, object]:
        return {
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
            "logprobs": 0,  # of the sampled token only
            **({"logit_bias": {str(i): NO_CHANCE for i in self.banned}} if self.banned else {}),
        }

    def _choice(self, reply: object) -> object:
        """The only choice. Raises ValueError for several, and for another model's."""
        choices = part(reply, "choices", list)
        if len(choices) != 1:
            raise ValueError(f"{len(choices)} choices in a reply to a request for one")
        served = part(reply, "model", str)
        if served != self.model:
            raise ValueError(f"the reply is from model {served}, not from {self.model}")
        return choices[0]

    def _check_prompt(self, whole: object) -> None:
        """Raise ValueError unless the server's prompt, with image tokens, equals the trainer's."""
        read = part(whole, "prompt_token_ids", list)
        if read != self.prompt and self.images:
            raise ValueError(
                f"the server reads {len(read)} tokens where the trainer reads {len(self.prompt)}, "
                "or different ones: its processor tokenises images differently; serve the folder "
                "model.path with the trainer's transformers version"
            )
        if read != self.prompt:
            raise ValueError("the reply is to another prompt")

    def _tokens(self, tokens: list[object]) -> list[int]:
        limit = self.sampling.max_new_tokens
        if not 1 <= len(tokens) <= limit:
            raise ValueError(f"the answer has {len(tokens)} tokens; 1 to {limit} are allowed")
        odd = [t for t in tokens if type(t) is not int or not 0 <= t < self.vocabulary]
        if odd:
            raise ValueError(f"{odd[0]!r} is not a token id of a vocabulary of {self.vocabulary}")
        if any(token in self.ends for token in tokens[:-1]):
            raise ValueError("the answer continues after an end token")
        return tokens

    def _is_truncated(self, choice: object, tokens: list[int]) -> bool:
        reason = part(choice, "finish_reason", str)
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
            raise ValueError(f"an answer ends with token {tokens[-1]}, which is not an end token")
        return False


@lru_cache(maxsize=SHOWN)
def image_part(picture: Picture, version: str) -> dict[str, str]:
    """A picture as sent to a server, named by its content and the weights: the server caches the
    output of its vision tower under that name."""
    code = base64.b64encode(as_png(picture.load())).decode()
    return {
        "type": "image_url",
        "url": f"data:image/png;base64,{code}",
        "uuid": f"{picture.name}-{version}",
    }


class Generation(Question):
    """vLLM's token endpoint (0.32 or later with --enable-scale-out)."""

    __slots__ = ()
    path = "/inference/v1/generate"

    def payload(self) -> dict[str, object]:
        # Tokens are decoded to text only if a stop string is searched in it.
        numbers = self._numbers() | {"detokenize": bool(self.sampling.stop)}
        shown = [image_part(picture, self.version) for picture in self.images]
        return {
            "model": self.model,
            "token_ids": [*self.marked] if shown else self.prompt,
            **({"content_parts": shown} if shown else {}),
            "sampling_params": numbers,
            "cache_salt": self.version,
            "return_token_ids": True,
        }

    def row(self, reply: object) -> Row:
        choice = self._choice(reply)
        self._check_prompt(reply)
        tokens = self._tokens(part(choice, "token_ids", list))
        said = part(part(choice, "logprobs", dict), "content", list)
        logp = logp_of([part(each, "logprob", int | float) for each in said], len(tokens))
        if [part(each, "token_id", int) for each in said] != tokens:
            raise ValueError("its log-probabilities are not those of its tokens")
        spans = _spans(part(choice, "weight_versions", list | None), len(tokens))
        return Row(tokens, logp, self._is_truncated(choice, tokens), spans)


class Completion(Question):
    """vLLM's text endpoint."""

    __slots__ = ()
    path = "/v1/completions"

    def payload(self) -> dict[str, object]:
        return {
            "model": self.model,
            "prompt": self.prompt,
            **self._numbers(),
            "cache_salt": self.version,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "add_special_tokens": False,
        }

    def row(self, reply: object) -> Row:
        choice = self._choice(reply)
        self._check_prompt(choice)
        tokens = self._tokens(part(choice, "token_ids", list))
        said = part(choice, "logprobs", dict)
        logp = logp_of(part(said, "token_logprobs", list), len(tokens))
        if part(said, "tokens", list) != [f"token_id:{token}" for token in tokens]:
            raise ValueError("its log-probabilities are not those of its tokens")
        return Row(tokens, logp, self._is_truncated(choice, tokens))


def logp_of(said: list[object], count: int) -> list[float]:
    if len(said) != count:
        raise ValueError(f"{len(said)} log-probabilities for {count} tokens")
    for value in said:
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{value!r} is not a log-probability")
        if not NEVER < value <= POSITIVE:
            raise ValueError(f"{value!r} is not the log-probability of a sampled token")
    return [float(value) for value in said]


def _spans(said: list[object] | None, count: int) -> list[Span]:
    """Version spans that cover all tokens in order; empty if the server reported none."""
    spans = [
        Span(part(each, "version", str), part(each, "start", int), part(each, "end", int))
        for each in said or ()
    ]
    ends = [0, *(span.end for span in spans)]
    if spans and (ends[-1] != count or [span.start for span in spans] != ends[:-1]):
        raise ValueError("the version spans do not cover all its tokens")
    return spans


def part(whole: object, name: str, kind: type | UnionType) -> object:
    """A field of a JSON object, of the given type."""
    if not isinstance(whole, Mapping) or not isinstance(whole.get(name), kind):
        raise ValueError(f"the reply has no {name}")
    return whole[name]


def refuse_pictures(prompts: Sequence[list[int]]) -> None:
    """Raise ValueError for images, which the text endpoint does not accept."""
    if any(isinstance(prompt, PromptIds) and prompt.images for prompt in prompts):
        raise ValueError(
            "rollout.engine: prompts have images, and the server has no token endpoint; start it "
            "with --enable-scale-out (vLLM 0.32 or later)"
        )


def image_fields(prompt: list[int]) -> dict[str, Sequence]:
    """Request fields beside the token ids, for a prompt that may have images."""
    if not isinstance(prompt, PromptIds):
        return {}
    return {"images": prompt.images, "marked": prompt.marked, "banned": prompt.banned}
