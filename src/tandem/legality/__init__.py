"""The legality of a run: contradictions between parts that are each right by themselves.

A rule is a generator of lines, each of which names the flag to set. To add one, write it and put it
into the RULES of its file.
"""

from __future__ import annotations

from collections.abc import Iterator

from tandem.legality import (
    advantages,
    chains,
    devices,
    domains,
    episodes,
    judges,
    masked,
    matching,
    memory,
    off_policy,
    pictures,
    preferences,
    samples,
    staleness,
    steps,
    teachers,
    updates,
)
from tandem.legality.case import Case, Part

RULES = (
    *masked.RULES,
    *chains.RULES,
    *domains.RULES,
    *matching.RULES,
    *pictures.RULES,
    *teachers.RULES,
    *devices.RULES,
    *memory.RULES,
    *advantages.RULES,
    *updates.RULES,
    *preferences.RULES,
    *off_policy.RULES,
    *samples.RULES,
    *staleness.RULES,
    *episodes.RULES,
    *judges.RULES,
    *steps.RULES,
)

__all__ = ["RULES", "Case", "Part", "check"]


def check(case: Case) -> Iterator[str]:
    """All that can be known to be wrong before a weight is loaded, the most telling line first."""
    for rule in RULES:
        yield from rule(case)
