"""Console messages, printed once however many ranks there are."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from tandem import distributed
from tandem.record import terminal


def say(text: str) -> None:
    if distributed.is_first():
        terminal.say(text)


def doing(name: str, text: str) -> AbstractContextManager:
    return terminal.doing(name, text) if distributed.is_first() else nullcontext()
