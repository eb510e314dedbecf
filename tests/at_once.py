"""Rewards written in tests, called as a training step calls them."""

from collections import Counter, defaultdict
from functools import partial
from types import MappingProxyType
from typing import ClassVar


class AtOnce:
    """Rewards of (outputs, prompts) by a subclass, without waiting and without comparisons."""

    waits = False
    full = MappingProxyType({})
    faults: ClassVar = defaultdict(Counter)  # none are counted

    def begin(self, outputs, prompts, group, *, iteration=0, faults=None):
        return partial(self, outputs, prompts)

    def pop_faults(self, *, judges: bool = False) -> dict[str, int]:
        return {}
