"""Rewards that tests write by themselves, asked as a training step asks."""

from functools import partial


class AtOnce:
    """A subclass scores (outputs, prompts); nothing of it waits, and it compares nobody."""

    waits = False

    def begin(self, outputs, prompts, group, *, iteration=0):
        return partial(self, outputs, prompts)

    def pop_faults(self, *, judges: bool = False) -> dict[str, int]:
        return {}
