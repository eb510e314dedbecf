"""Legality rules: contradictions between parts that are each valid on their own.

A rule is a generator of messages, each of which names the flag to set. To add a rule, write it and
list it in RULES of its file.
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
    smoke_tests,
    staleness,
    steps,
    teachers,
    updates,
)
from tandem.legality.case import Case, Part

RULES = (
    *smoke_tests.RULES,  # before those that call these parts
    *masked.RULES,
    *chains.RULES,
    *domains.RULES,
    *samples.KINDS,
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

# Rules of kinds: they read no value that a user must give, such as a path.
KINDS = (*samples.KINDS, *domains.RULES)

__all__ = ["KINDS", "RULES", "Case", "Part", "check", "check_kinds"]


def check_kinds(case: Case) -> Iterator[str]:
    """The contradictions between kinds of parts."""
    for rule in KINDS:
        yield from rule(case)


def check(case: Case) -> Iterator[str]:
    """Every contradiction that can be found before weights are loaded, the most useful first."""
    for rule in RULES:
        yield from rule(case)
