"""The facts of a configuration key: what its value matters for, said at the key itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Facts of a configuration key. All that lies below a key has the same."""

    weights: bool = True  # decides which weights come out: part of the name of a warm start
    shared: bool = False  # a warm start takes over the value of the run that it is for
    start: bool = False  # decides which weights a run begins with
    resumable: bool = False  # a run that goes on may be given another value
    compared: bool = True  # two runs that differ in it are no seeds of one configuration
    mirrored: bool = True  # shown where a run is mirrored


# Of keys that say where a run lies and how it was asked for.
AT_HOME = {"weights": False, "compared": False, "mirrored": False}


def key(**facts: bool) -> dict[str, Key]:
    """The metadata of a field whose key does not matter as most do."""
    return {"key": Key(**facts)}
