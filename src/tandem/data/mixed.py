"""The stream of prompts of a mixture of datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tandem import rng
from tandem.data.records import StreamMaker
from tandem.data.stream import PromptStream, draw_weighted
from tandem.types import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The weight of a dataset, and the order of its prompts."""

    weight: float
    stream: StreamMaker


class MixedStream(PromptStream):
    """Each slot draws its dataset by weight, and each dataset has a stream of its own.

    The slots of a dataset take the first of the prompts that its stream would give to all slots.
    Properties within an iteration hold, such as no prompt twice; but the stream also advances past
    prompts that were not taken, so its epochs hold only on average. The sources of a dataset start
    with its name and a slash.
    """

    def __init__(self, prompts: Sequence[Prompt], *, seed: int, of: Mapping[str, Order]) -> None:
        super().__init__(prompts, seed=seed)
        owners = [owner_of(prompt.source) for prompt in self.prompts]
        places = {name: [i for i, owner in enumerate(owners) if owner == name] for name in of}
        for name, own in places.items():
            if not own:
                raise ValueError(
                    f"data.of.{name} has no prompt that this algorithm trains on; remove it"
                )
        self.names = tuple(of)
        self.members = [torch.tensor(own) for own in places.values()]
        self.weights = torch.tensor([one.weight for one in of.values()], dtype=torch.float64)
        self.streams = nn.ModuleList(
            one.stream([self.prompts[i] for i in own], seed=rng.key(seed, "dataset", name))
            for (name, one), own in zip(of.items(), places.values(), strict=True)
        )

    def observe(self, sources: Sequence[str], success: Tensor) -> None:
        """Each stream that asks for it hears of its own sources. `success`: [N] for the N sources
        of its samples."""
        owners = [owner_of(source) for source in sources]
        for name, stream in zip(self.names, self.streams, strict=True):
            if stream.observe is None:
                continue
            rows = [i for i, owner in enumerate(owners) if owner == name]
            stream.observe([sources[i] for i in rows], success[rows])

    def places(self, iteration: int, count: int, round: int) -> Tensor:
        chosen = draw_weighted(self.weights, rng.key(self.seed, "dataset", iteration, round), count)
        places = torch.empty_like(chosen)
        for number, (stream, members) in enumerate(zip(self.streams, self.members, strict=True)):
            slots = (chosen == number).nonzero()[:, 0]
            if len(slots):
                places[slots] = members[stream.places(iteration, count, round)[: len(slots)]]
        return places


def owner_of(source: str) -> str:
    """The dataset that a source belongs to."""
    return source.partition("/")[0]
