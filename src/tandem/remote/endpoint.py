"""An HTTP endpoint with limits, retries and a circuit breaker."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tandem.contracts import declare
from tandem.remote.breaker import Breaker
from tandem.remote.exchange import JSON, Limits, Reply, Wire, check_address
from tandem.remote.faults import BadReply, Late, LeftAlone, RemoteError
from tandem.remote.transport import Request, transport_to

Answer = TypeVar("Answer")
ATTEMPTS = 3  # of a call with an invalid reply
NEVER = 2**31  # more failures than can occur: there is no other server


@declare(judges_itself=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """The number of retries of a call, with waits that double."""

    count: int = 3  # attempts after the first
    wait: float = 0.5  # seconds before the second attempt
    longest: float = 20.0  # seconds of any wait, unless the endpoint asks for more

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"count={self.count}: must not be negative")
        if not 0 <= self.wait <= self.longest:
            raise ValueError(f"wait={self.wait}: must be between 0 and longest={self.longest}")

    def pause(self, attempt: int, body: bytes) -> float:
        """Seconds to wait after an attempt: half is fixed, half depends on the body, so that ranks
        that failed together do not retry together."""
        share = zlib.crc32(attempt.to_bytes(4, "big"), zlib.crc32(body)) / 2**32
        return min(self.wait * 2.0 ** min(attempt - 1, 64), self.longest) * (0.5 + 0.5 * share)


def as_body(payload: object) -> bytes:
    """The body of a request in JSON."""
    return json.dumps(payload).encode()


def as_json(reply: Reply) -> object:
    """The content of a JSON reply. Raises ValueError for anything else."""
    if reply.kind != JSON:
        raise ValueError(f"expected {JSON}, got {reply.kind or 'no content type'}")
    try:
        return json.loads(reply.body)
    except (ValueError, RecursionError):
        raise ValueError(f"the reply of {len(reply.body)} bytes is not JSON") from None


class Endpoint:
    """An address for requests, with their limits.

    `token_env` names the environment variable with the bearer token, which is read for every
    request and never stored. `where` is the configuration key that messages name; `keys` replaces
    the keys of single limits and of the `url`, by default `where.limits.NAME` and `where.url`.
    Redirects are not followed. Threads may share an endpoint.
    """

    def __init__(
        self,
        url: str,
        *,
        where: str,
        keys: Mapping[str, str] | None = None,
        token_env: str | None = None,
        limits: Limits | None = None,
        retries: Retries | None = None,
        breaker: Breaker | None = None,
        keep_alive: bool = False,
    ) -> None:
        """keep_alive: connections are kept for further requests."""
        self.url = check_address(url)
        self.where = where
        self.limits = limits or Limits()
        self.retries = retries or Retries()
        self.breaker = breaker or Breaker()
        self.wire = Wire(
            transport_to(self.url, keep_alive=keep_alive),
            limits=self.limits,
            token_env=token_env,
            where=where,
            keys=keys,
        )

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r}, token_env={self.wire.token_env!r})"

    def get(self, path: str, *, read: Callable[[Reply], Answer] = as_json) -> Answer:
        """The result of `read` for the reply; raises RemoteError."""
        request = Request(method="GET", url=self.url + path, body=b"", kind=JSON)
        return self._call(request, read, repeatable=True)

    def post(
        self,
        path: str,
        body: bytes,
        *,
        kind: str = JSON,
        read: Callable[[Reply], Answer] = as_json,
        repeatable: bool = True,
    ) -> Answer:
        """The result of `read` for the reply; a ValueError of `read` counts against the endpoint.

        `repeatable`: sending it twice has the same effect as once, so it may be retried. Raises
        RemoteError.
        """
        request = Request(method="POST", url=self.url + path, body=body, kind=kind)
        return self._call(request, read, repeatable=repeatable)

    def _call(
        self, request: Request, read: Callable[[Reply], Answer], *, repeatable: bool
    ) -> Answer:
        admission = admit(self.breaker, request.url, self.where)
        end = time.monotonic() + self.limits.deadline
        left = min(self.limits.timeout, self.limits.deadline)
        slow: Late | None = None
        attempt = 0
        while True:
            attempt += 1
            try:
                answer = self._read(request, read, self.wire.send(request, left))
            except RemoteError as error:
                # More time for the call would not help where each attempt needs more.
                slow = error if isinstance(error, Late) and error.whole else slow
                again = repeatable and error.passing and attempt <= self.retries.count
                least = error.retry_after or 0.0
                if not again or not self._wait_before_retry(
                    max(self.retries.pause(attempt, request.body), least), end
                ):
                    report(self.breaker, error, admission)
                    raise (slow or error if isinstance(error, Late) else error) from None
            else:
                self.breaker.record_success()
                return answer
            left = min(self.limits.timeout, end - time.monotonic())

    def _wait_before_retry(self, pause: float, end: float) -> bool:
        """Wait, and return whether time is left: a sleep may end later than requested."""
        if self.breaker.is_open or time.monotonic() + pause >= end:
            return False
        time.sleep(pause)
        return time.monotonic() < end

    def _read(self, request: Request, read: Callable[[Reply], Answer], reply: Reply) -> Answer:
        try:
            return read(reply)
        except ValueError as error:
            raise BadReply(f"{request.url}: {error}; see {self.wire.keys['url']}") from None


def admit(breaker: Breaker, url: str, where: str) -> int:
    """The admission of a call that may begin now, to pass to `report`; raises LeftAlone.

    The breaker counts calls, not attempts: otherwise it would open before the last retry.
    """
    admission = breaker.admits()
    if admission is None:
        last = breaker.last.removeprefix(f"{url}: ")
        raise LeftAlone(
            f"{url}: skipped after {breaker.failures} failures in a row; retried every "
            f"{breaker.pause:g} s ({where}.breaker); the last: {last}"
        )
    return admission


def report(breaker: Breaker, error: RemoteError, admission: int) -> None:
    """Report a failed call to the breaker."""
    if error.ill:
        breaker.record_failure(admission, str(error))
    else:
        breaker.record_success()


def ask_again(ask: Callable[[], Answer]) -> Answer:
    """The answer of a call, repeated after an invalid reply."""
    for left in reversed(range(ATTEMPTS)):
        try:
            return ask()
        except BadReply:
            if not left:
                raise
    raise AssertionError("an attempt answers or raises")


def patient_endpoint(
    url: str, *, where: str, keys: Mapping[str, str], token_env: str | None, limits: Limits
) -> Endpoint:
    """An endpoint for the only server of its kind: calls are retried until the deadline, and
    connections are kept."""
    return Endpoint(
        url.rstrip("/"),
        where=where,
        keys=keys,
        token_env=token_env,
        limits=limits,
        retries=Retries(count=NEVER, wait=0.5, longest=20.0),
        breaker=Breaker(failures=NEVER),
        keep_alive=True,
    )
