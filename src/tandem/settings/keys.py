"""Facts of a configuration key: what its value affects, declared at the key."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Facts of a configuration key. They also hold for all keys below it."""

    weights: bool = True  # affects the trained weights: part of the name of a warm start
    shared: bool = False  # a warm start takes the value from the run that uses it
    start: bool = False  # affects the initial weights of a run
    resumable: bool = False  # may change when a run is resumed
    compared: bool = True  # runs that differ in it are not seeds of one configuration
    mirrored: bool = True  # shown where a run is mirrored


# Facts of keys about where a run is stored and how it was started.
AT_HOME = {"weights": False, "compared": False, "mirrored": False}


def key(**facts: bool) -> dict[str, Key]:
    """The metadata of a field whose key differs from the default facts."""
    return {"key": Key(**facts)}
