"""Groups of rows that several engines take from one pile."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from tandem.policies.language.records import Answers
from tandem.types import concat


class Groups:
    """The places of groups that nobody answers yet, shared by threads."""

    def __init__(self, count: int) -> None:
        self.waiting, self.asked, self.closed = deque(range(count)), set[int](), False
        self.answers: dict[int, Answers] = {}
        self.changed = threading.Condition()

    @property
    def left(self) -> bool:
        """Whether a group has no answer."""
        return bool(self.waiting or self.asked)

    def take(self) -> int | None:
        """The next one; None: there is none, and nobody is at work who might give one back."""
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
        """Nobody gets another one."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()


def concat_answers(parts: Sequence[Answers]) -> Answers:
    """Rows one after another, padded with 0 to the longest; of what an engine may leave out, only
    what all say."""
    for name in ("entropy", "version"):
        if any(getattr(part, name) is None for part in parts):
            parts = [replace(part, **{name: None}) for part in parts]
    return concat(parts)
