"""Prompts of an iteration: a pure function of seed, iteration, round and slot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn

from tandem import rng
from tandem.stop import Stop
from tandem.types import Prompt


class OtherPrompts(Stop):
    """Prompts that the state of a checkpoint does not fit."""

    may_save = False  # the state is restored in part

    def __init__(self, found: str) -> None:
        super().__init__(
            f"{found}; restore the data of the checkpoint, or start a new run from its weights by "
            "continue_from=RUN"
        )


class PromptStream(nn.Module):
    """Every prompt equally often: a keyed permutation per epoch, read in steps of `count`.

    An iteration repeats no prompt if the set has at least `count`: the rest of an epoch that is too
    small for an iteration is skipped.
    """

    # Is told the success, in [0, 1], of the rows of one iteration by their sources: (sources [N],
    # success [N]); None: what is drawn does not depend on it.
    observe: Callable[[Sequence[str], Tensor], None] | None = None

    def __init__(self, prompts: Sequence[Prompt], *, seed: int) -> None:
        super().__init__()
        if not prompts:
            raise ValueError("a stream needs at least one prompt")
        self.prompts = tuple(prompts)
        self.seed = seed

    def draw(self, iteration: int, count: int, *, round: int = 0) -> list[Prompt]:
        """The prompts of all ranks. `round` > 0 draws more without changing later iterations.

        All rounds of an iteration have the same `count`; callers that need fewer take the first.
        """
        places = self.places(iteration, count, round).tolist()
        if strange := [place for place in places if not 0 <= place < len(self.prompts)]:
            raise Stop(
                f"{type(self).__name__}.places gave {strange[0]}, and there are "
                f"{len(self.prompts)} prompts; give indices from 0"
            )
        return [self.prompts[place] for place in places]

    def places(self, iteration: int, count: int, round: int) -> Tensor:
        """Indices of the drawn prompts: [count] int64."""
        main = self._main(iteration, count)
        if round == 0:
            return main
        # Refills have their own order, so that they do not affect the main stream.
        order = rng.permutation(rng.key(self.seed, "refill", iteration), len(self.prompts))
        used = torch.isin(order, main)
        order = torch.cat([order[~used], order[used]])
        return order[((round - 1) * count + torch.arange(count)) % len(order)]

    def _main(self, iteration: int, count: int) -> Tensor:
        size = len(self.prompts)
        epoch_length = size // count * count if count <= size else size
        position = iteration * count + torch.arange(count)
        epoch = position // epoch_length
        first, last = int(epoch[0]), int(epoch[-1])
        orders = [order_of_epoch(self.seed, number, size) for number in range(first, last + 1)]
        return torch.stack(orders)[epoch - first, position % epoch_length]


@lru_cache(maxsize=2)  # sorted once per epoch; an iteration may end one epoch and begin the next
def order_of_epoch(seed: int, epoch: int, size: int) -> Tensor:
    """The indices of `size` prompts in the order of an epoch: [size] int64."""
    return rng.permutation(rng.key(seed, "prompts", epoch), size)


class DrawnAhead:
    """A stream whose prompts are drawn several iterations before they are trained on, with the
    curriculum of that time, since older weights sample their answers."""

    def __init__(self, stream: PromptStream, *, ahead: int, kept: int) -> None:
        """kept: number of past iterations whose draws can still be read."""
        self.stream, self.ahead, self.kept = stream, ahead, kept
        self.places: dict[int, Tensor] = {}  # iteration -> indices of prompts
        self.wanted: Callable[[], set[int]] = set  # older iterations whose draws are still needed

    def draw(self, iteration: int, count: int, *, round: int = 0) -> list[Prompt]:
        """The prompts; further rounds are drawn on demand."""
        if round:
            return self.stream.draw(iteration, count, round=round)
        for later in range(iteration, iteration + self.ahead + 1):
            if later not in self.places:
                self.places[later] = self.stream.places(later, count, 0)
        wanted, oldest = self.wanted(), iteration - self.kept
        self.places = {i: x for i, x in self.places.items() if i >= oldest or i in wanted}
        return self.prompts_of(iteration)

    def prompts_of(self, iteration: int) -> list[Prompt]:
        """The prompts of an iteration whose draw is kept."""
        return [self.stream.prompts[place] for place in self.places[iteration].tolist()]

    def state(self) -> dict[str, Tensor]:
        """drawn/ITERATION -> indices, [count] int64."""
        return {f"drawn/{iteration}": places for iteration, places in self.places.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the result of `state`, ignoring other entries. [count] int64.

        Raises OtherPrompts if there are too few prompts."""
        own = {name.partition("/")[2]: x for name, x in state.items() if name.startswith("drawn/")}
        last, count = max((int(x.max()) for x in own.values()), default=0), len(self.stream.prompts)
        if last >= count:
            raise OtherPrompts(f"the checkpoint drew prompt {last}, and there are {count}")
        self.places = {int(iteration): x.clone() for iteration, x in own.items()}


class Curriculum(PromptStream):
    """Sources are drawn with weight p (1 - p) + floor, where p is the success rate of a source.

    p starts at 1/2 and is a moving average over iterations. A decay of 0.8 averages about five: it
    reduces the noise of a mean over some 60 samples of a source from 0.065 to 0.02, below the
    floor; a slower one would lag behind a frontier that moves every ten iterations. The floor keeps
    mastered sources in the draw, which would otherwise be forgotten.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        *,
        seed: int,
        # Number added to p (1 - p), p the success rate of a source, so that every source is drawn.
        floor: float = 0.03,
        decay: float = 0.8,
    ) -> None:
        super().__init__(prompts, seed=seed)
        if floor <= 0 or not 0 <= decay < 1:
            raise ValueError(
                f"a curriculum needs floor > 0 and 0 <= decay < 1, not floor={floor}, decay={decay}"
            )
        self.floor = floor
        self.decay = decay
        self.sources = tuple(sorted({prompt.source for prompt in self.prompts}))
        self.members = _members(self.prompts, self.sources)
        self.register_buffer("success", torch.full((len(self.sources),), 0.5, dtype=torch.float64))

    def weights(self) -> Tensor:
        """Probabilities in the order of `sources`: float64, sum to 1: [sources]."""
        weights = self.success * (1 - self.success) + self.floor
        return weights / weights.sum()

    def observe(self, sources: Sequence[str], success: Tensor) -> None:
        """Move the rate of each source that was seen towards its mean success of this iteration.

        A missing success (NaN) is ignored; values are clamped to [0, 1].
        """
        success = success.detach().cpu().double()
        known = ~success.isnan()
        number = {source: place for place, source in enumerate(self.sources)}
        index = torch.tensor([number[source] for source in sources], dtype=torch.int64)[known]
        none = torch.zeros_like(self.success)
        count = none.index_add(0, index, torch.ones_like(success[known]))
        total = none.index_add(0, index, success[known].clamp(0, 1))
        seen = count > 0
        mean = total[seen] / count[seen]
        self.success[seen] = self.decay * self.success[seen] + (1 - self.decay) * mean

    def places(self, iteration: int, count: int, round: int) -> Tensor:
        # Later rounds continue earlier ones, so a round depends on the choices before it.
        chosen = torch.cat([self._choose(iteration, count, turn) for turn in range(round + 1)])
        nth = torch.nn.functional.one_hot(chosen, len(self.sources)).cumsum(0)
        nth = nth.gather(1, chosen[:, None])[:, 0] - 1  # earlier draws of the source
        orders = {source: self._order(iteration, source) for source in set(chosen.tolist())}
        last = zip(chosen[-count:].tolist(), nth[-count:].tolist(), strict=True)
        return torch.stack([orders[source][n % len(orders[source])] for source, n in last])

    def _choose(self, iteration: int, count: int, round: int) -> Tensor:
        return draw_weighted(self.weights(), rng.key(self.seed, "source", iteration, round), count)

    def _order(self, iteration: int, source: int) -> Tensor:
        members = self.members[source]
        name = self.sources[source]
        return members[rng.permutation(rng.key(self.seed, "within", name, iteration), len(members))]

    def _apply(self, fn: Callable, recurse: bool = True) -> Curriculum:
        # Bookkeeping stays in float64 on the CPU when the module around it is moved or cast.
        return self


def draw_weighted(weights: Tensor, key: int, count: int) -> Tensor:
    """`count` draws with these unnormalised probabilities: [count] int64 indices."""
    edges = weights.cumsum(0)
    uniform = rng.uniform(key, (count,)) * edges[-1]
    return torch.searchsorted(edges[:-1].contiguous(), uniform, right=True)


def _members(prompts: Sequence[Prompt], sources: Sequence[str]) -> list[Tensor]:
    places: dict[str, list[int]] = {source: [] for source in sources}
    for place, prompt in enumerate(prompts):
        places[prompt.source].append(place)
    return [torch.tensor(places[source]) for source in sources]
