"""Faults of remote endpoints, each in one line: the address, the reply and the key to set."""

from __future__ import annotations


class RemoteError(RuntimeError):
    """A request got no answer that can be used. The text holds no credentials."""

    passing = False  # whether the same request may succeed a moment later
    ill = True  # whether it speaks against the endpoint, not against the request


class Unreachable(RemoteError):
    """No connection, or one that broke before the reply was whole."""

    passing = True


class Late(RemoteError):
    """No whole reply in time."""

    passing = True


class Unwell(RemoteError):
    """A status of 429, or of 500 and above."""

    passing = True

    def __init__(self, text: str, *, status: int, retry_after: float | None) -> None:
        super().__init__(text)
        self.status = status
        self.ill = status != 429  # who says how much is too much is well
        self.retry_after = retry_after  # seconds that the endpoint asks for; None: it said nothing


class Rejected(RemoteError):
    """A status between 400 and 499: the same request would be rejected again."""

    ill = False

    def __init__(self, text: str, *, status: int) -> None:
        super().__init__(text)
        self.status = status


class BadReply(RemoteError):
    """Too large, a redirect, or nothing that can be read."""


class LeftAlone(RemoteError):
    """The endpoint failed so often in a row that it was not asked."""

    ill = False
