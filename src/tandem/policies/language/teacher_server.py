"""A teacher on a server: vLLM returns log-probabilities of the token ids that a student wrote.

Only ids are sent and returned, never text: a reply about other ids is rejected. All requests are
made before the first update of an iteration, and the replies are kept with its rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated
from urllib.parse import urlsplit

import torch
from torch import Tensor

from tandem.contracts import declare, positive
from tandem.policies.engines.replies import part
from tandem.policies.engines.vllm_checks import cards_of
from tandem.policies.language.chat import Chat
from tandem.policies.language.contexts import split_contexts
from tandem.policies.language.inputs import TokenIndex
from tandem.policies.language.records import TokenSample
from tandem.policies.language.same_tokens import CONVERSATION, TEXT
from tandem.remote import (
    Endpoint,
    Limits,
    Rejected,
    RemoteError,
    Reply,
    as_body,
    as_json,
    ask_again,
    check_address,
    patient_endpoint,
)
from tandem.stop import EngineUnavailable
from tandem.threads import map_in_threads
from tandem.types import Prompt

WHERE = "algorithm.teachers.server"
FOLDERS = "algorithm.teachers.folders"  # key of the addresses
SOON = 5.0  # seconds for the first reply of a server
Likely = tuple[float, list[tuple[int, float]]]  # of the written token, and the most likely ones


@declare(judges_itself=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherServer:
    """Options of requests to teachers on servers."""

    # One for all servers, or {source: value}; None: the server's first model, and no key.
    model: str | Mapping[str, str] | None = None  # name under which the teacher is served
    api_key_env: str | Mapping[str, str] | None = None  # environment variable of the --api-key
    concurrency: Annotated[int, positive] = 64  # concurrent requests per server
    timeout: Annotated[float, positive] = 300.0  # seconds per attempt
    patience: Annotated[float, positive] = 900.0  # seconds that a server may be unreachable
    max_reply_bytes: Annotated[int, positive] = 2**28  # largest reply; a larger one is refused

    def check_sources(self, addresses: Mapping[str, str]) -> None:
        """addresses: by source. Raise ValueError for a single value that several servers would
        share, and for a source without a server."""
        several = len({urlsplit(address)[:2] for address in addresses.values()}) > 1
        for name, value in self._own().items():
            of = sorted({*value} - {*addresses}) if isinstance(value, Mapping) else []
            if of:
                raise ValueError(
                    f"{WHERE}.{name}.{of[0]}: {FOLDERS} has no server of that name; it has "
                    f"{', '.join(sorted(addresses)) or 'none'}"
                )
            if isinstance(value, str) and several:
                raise ValueError(
                    f"{WHERE}.{name}={value} would go to each of "
                    f"{', '.join(sorted({*addresses.values()}))}; set it per source: "
                    f"'{WHERE}.{name}={{{', '.join(f'{x}: ...' for x in sorted(addresses))}}}'"
                )

    def of(self, source: str) -> TeacherServer:
        """The options for the server of one source."""
        own = self._own().items()
        return replace(self, **{n: x.get(source) if isinstance(x, Mapping) else x for n, x in own})

    def _own(self) -> dict[str, str | Mapping[str, str] | None]:
        return {"api_key_env": self.api_key_env, "model": self.model}

    def endpoint(self, url: str, *, patience: float | None = None) -> Endpoint:
        """patience: overrides the option."""
        patience = self.patience if patience is None else patience
        keys = {x: f"{WHERE}.{x}" for x in ("timeout", "max_reply_bytes")}
        return patient_endpoint(
            check_address(url),
            where=WHERE,
            keys=keys | {"deadline": f"{WHERE}.patience", "connect": FOLDERS, "url": FOLDERS},
            token_env=self.api_key_env,
            limits=Limits(
                timeout=self.timeout, deadline=patience, max_reply_bytes=self.max_reply_bytes
            ),
        )


class ServedTeacher:
    """One teacher; threads send its requests."""

    def __init__(self, given: str, url: str, options: TeacherServer, *, top_k: int) -> None:
        """given: the user's override; top_k: number of most likely tokens requested per state, 0:
        the written token alone.

        Raises ValueError if the server does not answer.
        """
        self.given, self.top_k, self.concurrency = given, top_k, options.concurrency
        self.endpoint = options.endpoint(url)
        first = options.endpoint(url, patience=min(options.patience, SOON))
        try:
            self.name, self.positions = card_of(first.get("/v1/models"), options.model)
        except (RemoteError, ValueError) as error:
            raise ValueError(f"{given}: the teacher does not answer: {error}") from None

    def check_tokens(self, chat: Chat) -> None:
        """Raise ValueError if its tokenizer encodes differently from the policy's."""
        talk = Prompt(id=0, source="", messages=CONVERSATION)
        for text in (TEXT, chat.text(talk)):
            asked = {"model": self.name, "prompt": text, "add_special_tokens": False}
            try:
                said = self.endpoint.post("/tokenize", as_body(asked))
            except RemoteError as error:
                raise ValueError(f"{self.given}: its /tokenize does not answer: {error}") from None
            theirs = said.get("tokens") if isinstance(said, Mapping) else None
            if theirs != (own := chat.ids([text], special=False)[0]):
                raise ValueError(
                    f"{self.given}: its tokenizer encodes {str(text[:20])!r}... as "
                    f"{str(theirs)[:60]}, but the policy's as {str(own)[:60]}; a teacher reads the "
                    "policy's own token ids, so serve one with the same tokenizer"
                )

    def judge(self, sample: TokenSample, mask: Tensor) -> tuple[Tensor, Tensor]:
        """At each step of a mask [B, T], the log-probability of its token, [B, T], and ids and
        log-probabilities of the most likely tokens, [B, T, top_k, 2]; 0 outside the mask.

        Raises EngineUnavailable for a server that does not answer.
        """
        places = TokenIndex.of(sample, mask)
        where = places.row.cpu(), places.step.cpu()
        if sample.context is not None:
            sample, places = split_contexts(sample, places)
        logp = torch.zeros(mask.shape, dtype=torch.float32)
        likeliest = torch.zeros((*mask.shape, self.top_k, 2), dtype=torch.float64)
        tokens, row = sample.tokens.tolist(), places.row.cpu()
        asked = {one: places.column.cpu()[row == one].tolist() for one in row.unique().tolist()}
        rows = [(tokens[one][: own[-1] + 1], own) for one, own in asked.items()]
        answers = map_in_threads(self.concurrency, lambda one: self._row(*one), rows)
        for one, said in zip(asked, answers, strict=True):
            step = where[0][row == one], where[1][row == one]
            logp[step] = torch.tensor([chosen for chosen, _ in said])
            if self.top_k:
                likeliest[step] = torch.tensor([top for _, top in said], dtype=torch.float64)
        return logp.to(mask.device), likeliest.to(mask.device)

    def _row(self, ids: list[int], columns: Sequence[int]) -> list[Likely]:
        """Values of the tokens in these columns; an invalid reply is requested again."""
        asked = {
            "model": self.name,
            "prompt": ids,
            "max_tokens": 1,
            "temperature": 1.0,
            "prompt_logprobs": self.top_k,
            "return_token_ids": True,
        }
        read = partial(likely_tokens, ids=ids, columns=columns, top_k=self.top_k)
        ask = partial(self.endpoint.post, "/v1/completions", as_body(asked), read=read)
        try:
            return ask_again(ask)
        except RemoteError as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: RemoteError) -> EngineUnavailable:
        hint = ""
        if isinstance(error, Rejected) and self.top_k and "logprobs" in str(error):
            hint = f"; start the server with --max-logprobs {self.top_k} or more"
        return EngineUnavailable(f"{self.given}: the teacher gave no answer: {error}{hint}")


def likely_tokens(
    reply: Reply, *, ids: list[int], columns: Sequence[int], top_k: int
) -> list[Likely]:
    """For each column, the reply's values of its token and of the most likely tokens.

    Raises ValueError for a reply about other ids, or with missing values. A server that counts the
    written token among the `top_k` sends as many entries as one whose written token is the least
    likely of them: at least one position of a row must distinguish the two.
    """
    choice = next(iter(part(as_json(reply), "choices", list)), None)
    every = part(choice, "prompt_logprobs", list)
    if part(choice, "prompt_token_ids", list) != ids:
        raise ValueError("the reply is about different token ids")
    if len(every) != len(ids):
        raise ValueError(f"the reply has {len(every)} positions for {len(ids)} token ids")
    likely = [_likely(every[column], ids[column], top_k) for column in columns]
    beside = any(isinstance(place, Mapping) and len(place) > top_k for place in every)
    inside = (_is_likeliest(every[x], ids[x], top_k) for x in columns)
    if top_k and not beside and not any(inside):
        raise ValueError(
            f"no position has {top_k} most likely tokens besides the written one; the server may "
            f"have sent {top_k - 1}"
        )
    return likely


def _is_likeliest(place: Mapping[str, Mapping], token: int, top_k: int) -> bool:
    """Whether the written token is certainly among the most likely of its position."""
    said = place[str(token)]
    rank = said.get("rank")
    least = min(other["logprob"] for other in place.values())
    return said["logprob"] > least or (isinstance(rank, int) and rank <= top_k)


def _likely(place: Mapping[str, Mapping], token: int, top_k: int) -> Likely:
    if not isinstance(place, Mapping) or str(token) not in place:
        raise ValueError(f"the reply has no value of token {token} at its position")
    known = {int(one): number(said) for one, said in place.items()}
    best = sorted(known.items(), key=lambda one: (-one[1], one[0]))[:top_k]
    if len(best) < top_k:
        raise ValueError(f"the reply has {len(best)} of {top_k} most likely tokens")
    return known[token], best


def number(said: object) -> float:
    """A log-probability. Raises ValueError for other numbers, such as logits."""
    logp = part(said, "logprob", int | float)
    if not math.isfinite(logp) or logp > 1e-3:
        raise ValueError(f"{logp!r:.40} is not a log-probability")
    return float(logp)


def card_of(models: object, name: str | None) -> tuple[str, int | None]:
    """The name of the model, by default the server's first, and the tokens that it reads: one fewer
    than its context, because it must write one.

    Raises ValueError if the server does not have the model.
    """
    cards = cards_of(models)
    if not cards or (name is not None and name not in cards):
        raise ValueError(f"{WHERE}.model={name}: it serves {', '.join(cards) or 'no model'}")
    chosen = name or next(iter(cards))
    room = cards[chosen].get("max_model_len")
    return chosen, room - 1 if isinstance(room, int) else None
