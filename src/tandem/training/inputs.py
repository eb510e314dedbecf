"""Checksums of what a run starts from, by which ranks and a resumed run are compared."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from pathlib import Path

import numpy as np
from torch import Tensor

from tandem import distributed
from tandem.stop import Stop
from tandem.types import Picture, Prompt

Checksums = Mapping[str, int]  # such as data=sort_letters -> of its prompts


list_fields = attrgetter(*(field.name for field in fields(Prompt)))


def checksum_of_prompts(prompts: Sequence[Prompt]) -> int:
    """Of all their fields, in order."""
    found = 0
    for prompt in prompts:
        said = json.dumps(list_fields(prompt), default=_to_json, skipkeys=True)
        found = zlib.crc32(said.encode(), found)
    return found


def _to_json(value: object) -> object:
    """What JSON can hold of a field's value; the type alone of an object of the user's own, whose
    repr may hold its address."""
    match value:
        case Picture():
            return value.name
        case Mapping():
            return dict(value)
        case set() | frozenset():
            return sorted(map(repr, value))
        case bytes():
            return value.hex()
        case np.generic() | np.ndarray() | Tensor():
            return value.tolist()
    return type(value).__name__


def checksum_of_code(places: Iterable[Path]) -> dict[str, int]:
    """Of the bytes of all files and of all modules in folders, by the name of the file or folder,
    which several may share."""
    found: dict[str, int] = {}
    for place in sorted(places):
        name = f"plugins: {place.name}"
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            found[name] = zlib.crc32(file.read_bytes(), found.get(name, 0))
    return found


def checksum_of_weights(weights: Mapping[str, Tensor]) -> int:
    """Of the first and the last number of each tensor, of any shape [...]: new weights that were
    drawn otherwise differ in them, and reading all of a large model takes seconds."""
    ends = {name: (x.flatten()[:1], x.flatten()[-1:]) for name, x in weights.items()}
    said = {name: [x.tolist() for x in both] for name, both in sorted(ends.items())}
    return zlib.crc32(repr(said).encode())


def refuse_unlike_ranks(own: Checksums) -> None:
    """Raise Stop on all ranks if they start from other prompts or weights. A rank that was sent the
    weights of the first one has no checksum of its own."""
    of_ranks = distributed.all_gather_object([dict(own)])
    names = of_ranks[0]
    unlike = [name for name in names if len({one.get(name, names[name]) for one in of_ranks}) > 1]
    if unlike:
        raise Stop(
            f"{unlike[0]} differs between ranks; let it depend on its arguments alone, draw by "
            "tandem.rng from its seed, and give all ranks the same files"
        )


def list_changed(own: Checksums, before: Checksums) -> list[str]:
    """A line for each input that a checkpoint was not written with."""
    return [
        f"{name} has changed: the resumed run may differ from one without a break"
        for name in own
        if before.get(name, own[name]) != own[name]
    ]
