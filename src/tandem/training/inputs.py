"""Checksums of what a run starts from, by which ranks and a resumed run are compared."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

from torch import Tensor

from tandem import distributed
from tandem.stop import Stop
from tandem.types import Prompt

Checksums = Mapping[str, int]  # such as data=sort_letters -> of its prompts


def checksum_of_prompts(prompts: Sequence[Prompt]) -> int:
    """Of their ids, questions and answers, in order."""
    found = 0
    for prompt in prompts:
        said = f"{prompt.id}\0{prompt.text or prompt.messages}\0{prompt.answer}\0"
        found = zlib.crc32(said.encode(errors="surrogatepass"), found)
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
            f"{unlike[0]} differs between ranks; let it depend on its arguments alone, and draw "
            "by tandem.rng from its seed"
        )


def list_changed(own: Checksums, before: Checksums) -> list[str]:
    """A line for each input that a checkpoint was not written with."""
    return [
        f"{name} has changed: the resumed run differs from one without a break"
        for name in own
        if before.get(name, own[name]) != own[name]
    ]
