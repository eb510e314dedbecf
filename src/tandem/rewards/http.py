"""A reward computed by a server, such as `python -m tandem serve`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from tandem.contracts import declare
from tandem.remote import Breaker, Endpoint, Limits, RemoteError, Reply, Retries, as_json
from tandem.rewards.result import HERE, Missing
from tandem.rewards.serialization import Number, Row, decode_numbers, encode, row_of
from tandem.rewards.signature import batched, split_known, waits
from tandem.types import Prompt


@declare(judges_itself=True)
@waits
@batched
class HttpReward:
    """The result of `POST url/score`, one request per batch of `reward.batch_size` samples.

    Of a prompt only its id, source, text or messages, answer and fields, and with an environment
    its episode (turns, end and counts), are sent. Fields that hold pictures or bytes stay here.
    A sample is missing if the server gives no number for it or does not answer; the reason is
    reported.
    `token_env` names the environment variable with the bearer token, if there is one. The protocol
    is in docs/remote_rewards.md.
    """

    def __init__(
        self,
        *,
        url: str,
        token_env: str | None = "TANDEM_REWARD_TOKEN",
        limits: Limits | None = None,  # seconds and bytes of a request
        retries: Retries | None = None,
        breaker: Breaker | None = None,
    ) -> None:
        self.endpoint = Endpoint(
            url,
            where=f"{HERE}function",
            token_env=token_env,
            limits=limits,
            retries=retries,
            breaker=breaker,
        )

    def __call__(self, outputs: Sequence[str | Tensor], prompts: Sequence[Prompt]) -> list[Number]:
        rows = [_row(place, *pair) for place, pair in enumerate(zip(outputs, prompts, strict=True))]
        known, numbers = split_known(rows)
        answers = self._request_scores([*known.values()]) if known else []
        for place, answer in zip(known, answers, strict=True):
            numbers[place] = answer
        return numbers

    def _request_scores(self, rows: Sequence[Row]) -> list[Number]:
        kind, body = encode(rows)
        read = partial(_numbers, ids=[row.id for row in rows])
        try:
            return self.endpoint.post("/score", body, kind=kind, read=read)
        except RemoteError as error:
            return [Missing(str(error))] * len(rows)


def _numbers(reply: Reply, ids: Sequence[str]) -> list[Number]:
    return decode_numbers(as_json(reply), ids)


def _row(place: int, output: str | Tensor, prompt: Prompt) -> Row | Missing:
    try:
        return row_of(place, output, prompt)
    except (TypeError, ValueError) as error:
        return Missing(f"cannot be sent: {error}")
