"""Faults of remote endpoints, each in one line: the address, the reply and the key to set."""

from __future__ import annotations


class RemoteError(RuntimeError):
    """A request without a usable answer. The text contains no credentials."""

    passing = False  # whether a retry of the same request may succeed
    ill = True  # whether the endpoint is at fault, not the request
    status: int | None = None  # of the reply; None: it has none, or an unexpected one
    retry_after: float | None = None  # seconds that the endpoint asks for; None: not given


class Unreachable(RemoteError):
    """No connection, or one that broke before the reply was complete."""

    passing = True


class Late(RemoteError):
    """No complete reply in time."""

    passing = True
    whole = False  # whether the attempt had all of its time, and not what the call left of it


class Unwell(RemoteError):
    """A status of 429, or of 500 and above."""

    passing = True

    def __init__(self, text: str, *, status: int, retry_after: float | None) -> None:
        super().__init__(text)
        self.status = status
        self.ill = status != 429  # a server that limits its load is healthy
        self.retry_after = retry_after


class Rejected(RemoteError):
    """A status between 400 and 499: the same request would be rejected again."""

    ill = False

    def __init__(self, text: str, *, status: int) -> None:
        super().__init__(text)
        self.status = status


class BadReply(RemoteError):
    """A reply that is too large, a redirect or unreadable."""


class LeftAlone(RemoteError):
    """A request that was skipped because the endpoint failed too often in a row."""

    ill = False
