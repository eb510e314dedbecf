"""Groups of rows in a queue that several engines share."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from tandem.policies.language.records import Answers
from tandem.types import concat


class Groups:
    """The indices of groups that wait for an engine, and the answers; shared by threads."""

    def __init__(self, count: int) -> None:
        self.waiting, self.asked, self.closed = deque(range(count)), set[int](), False
        self.answers: dict[int, Answers] = {}
        self.changed = threading.Condition()

    @property
    def left(self) -> bool:
        """Whether a group has no answer."""
        return bool(self.waiting or self.asked)

    def take(self) -> int | None:
        """The next group; None: none is waiting, and none is in progress that might come back."""
        with self.changed:
            self.changed.wait_for(lambda: self.waiting or not self.asked or self.closed)
            if self.closed or not self.waiting:
                return None
            place = self.waiting.popleft()
            self.asked.add(place)
            return place

    def give_back(self, place: int) -> None:
        with self.changed:
            self.asked.remove(place)
            self.waiting.appendleft(place)
            self.changed.notify_all()

    def finish(self, place: int, answers: Answers) -> None:
        with self.changed:
            self.asked.remove(place)
            self.answers[place] = answers
            self.changed.notify_all()

    def close(self) -> None:
        """Hand out no more groups."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()


def concat_answers(parts: Sequence[Answers]) -> Answers:
    """The rows of all parts in order, padded with 0 to the longest; an optional field is None
    unless all parts have it."""
    for name in ("entropy", "version"):
        if any(getattr(part, name) is None for part in parts):
            parts = [replace(part, **{name: None}) for part in parts]
    return concat(parts)
