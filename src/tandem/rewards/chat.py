"""A client of an OpenAI-compatible `/chat/completions` with concurrent requests."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tandem.contracts import declare
from tandem.remote import Breaker, Endpoint, Limits, RemoteError, Reply, Retries, as_body, as_json
from tandem.rewards.concurrency import at_once
from tandem.rewards.images import pixels
from tandem.rewards.result import HERE, Missing

WHERE = f"{HERE}function.chat"
Question = Sequence[str | Tensor]  # texts and pictures, uint8 [H, W, 3], in reading order


@declare(judges_itself=True)
@dataclass(kw_only=True)
class Chat:
    """The address of a model, its name, and the limits of a request."""

    url: str  # address of the server, with the /v1 that most have
    model: str  # name of the model on the server
    api_key_env: str | None = "OPENAI_API_KEY"  # environment variable of the key, never the key
    # Further fields of the request, such as temperature.
    body: Mapping[str, Any] = field(default_factory=dict)
    concurrency: int = 16  # concurrent questions
    limits: Limits = field(default_factory=Limits)  # seconds and bytes of a request
    retries: Retries = field(default_factory=Retries)
    breaker: Breaker = field(default_factory=Breaker)
    endpoint: Endpoint = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError(f"concurrency={self.concurrency}: must be positive")
        self.endpoint = Endpoint(
            self.url,
            where=WHERE,
            token_env=self.api_key_env,
            limits=self.limits,
            retries=self.retries,
            breaker=self.breaker,
        )

    def ask(self, questions: Sequence[tuple[str, Question]]) -> list[str | Exception]:
        """The reply to each pair of a system message and a question, or `Missing`."""
        return at_once(self.concurrency, self._say, [(question,) for question in questions])

    def _say(self, question: tuple[str, Question]) -> str:
        system, asked = question
        messages = [
            {"role": "system", "content": system},
            {"role": "user", "content": content(asked)},
        ]
        request = {**self.body, "model": self.model, "messages": messages}
        try:
            words, ended = self.endpoint.post(
                "/chat/completions", as_body(request), read=parse_completion
            )
        except RemoteError as error:
            raise Missing(str(error)) from None
        if ended == "length":
            raise Missing(f"the judge was cut off; raise {WHERE}.body.max_tokens")
        return words


def content(question: Question) -> str | list[dict[str, Any]]:
    """The content of a message; text alone stays a string, as text-only servers require."""
    if all(isinstance(part, str) for part in question):
        return "".join(question)
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": data_url(part)}}
        for part in question
    ]


def data_url(picture: Tensor) -> str:
    """A PNG, which is lossless. `picture`: uint8 [H, W, 3]."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels(picture).numpy()).save(file, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def parse_completion(reply: Reply) -> tuple[str, object]:
    """The text of a completion and its finish reason. Raises ValueError for an invalid one.

    Reasoning (`reasoning_content`) is not read.
    """
    match as_json(reply):
        case {"choices": [{"message": {"content": str(words)}} as first, *_]}:
            return words, first.get("finish_reason")
        case {"choices": [{"finish_reason": "length"}, *_]}:  # cut off while it reasoned
            return "", "length"
    raise ValueError("the completion has no text")
