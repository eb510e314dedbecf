"""Loaded teachers of a language policy: with weights on every rank, or on servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor

from tandem import distributed
from tandem.losses.divergence import StateDivergence
from tandem.policies.language.average import WeightAverage
from tandem.policies.language.compared import Compared, HiddenStates, LikeliestTokens
from tandem.policies.language.contexts import longest_context
from tandem.policies.language.logprob import TokenLogProbComputer
from tandem.policies.language.positions import positions
from tandem.policies.language.records import TokenSample
from tandem.policies.language.teacher_server import ServedTeacher
from tandem.policies.teachers import rows_by_teacher
from tandem.policies.weights import move
from tandem.stop import Stop
from tandem.types import Prompt, Rollout, take, taught_steps


class LoadedTokenTeachers:
    """Teachers with their weights, whole on every rank, and teachers on servers."""

    def __init__(
        self,
        scorers: Mapping[str, TokenLogProbComputer],
        *,
        served: Mapping[str, ServedTeacher] = MappingProxyType({}),
        distance: StateDivergence | None = None,
        average: WeightAverage | None = None,
    ) -> None:
        """scorers, served: by the source that each teaches."""
        self.scorers, self.served = scorers, served
        self.distance, self.average = distance, average
        known = {source: positions(scorer.model) for source, scorer in scorers.items()}
        known |= {source: teacher.positions for source, teacher in served.items()}
        self.room = {source: most for source, most in known.items() if most is not None}

    @property
    def positions(self) -> int | None:
        """Tokens that every teacher can read; None: unlimited."""
        return min(self.room.values(), default=None)

    def room_of(self, prompts: Sequence[Prompt]) -> list[int | None]:
        """Tokens that the teacher of each prompt can read; None: unlimited."""
        found: list[int | None] = [None] * len(prompts)
        for source, places in rows_by_teacher(prompts, {*self.scorers, *self.served}):
            for place in places:
                found[place] = self.room.get(source)
        return found

    def check_room(self, rollout: Rollout) -> None:
        """Raise Stop on all ranks, which call this together, if a row of one of them is too long
        for its teacher."""
        if self.positions is None:
            return
        found = distributed.all_gather_object([*self._explain_long(rollout)])
        if found:
            raise Stop(found[0], page="docs/distillation.md", together=True)

    def logp(self, rollout: Rollout) -> Tensor:
        """Log-probabilities of the tokens under each row's teacher, [B, T] nats; 0 outside the mask
        and in rows that it does not judge."""
        found = torch.zeros(rollout.mask.shape, device=rollout.mask.device)
        for source, rows in self._rows_by_source(rollout):
            sample, mask = take(sample_of(rollout), rows), rollout.mask[rows]
            if source in self.served:
                said = self.served[source].judge(sample, mask)[0]
            else:
                said = self._move_scorer(source, mask.device).in_parts(sample, mask).logp
            found = found.to(said.dtype).index_copy(0, rows, said)
        return found

    def ask_servers(self, rollout: Rollout) -> Rollout:
        """The rows with their servers' most likely tokens at each step; servers are asked once."""
        sample: TokenSample = rollout.sample
        if not self.served or sample.likeliest is not None:
            return rollout
        shape = (*rollout.mask.shape, self.distance.top_k, 2)
        found = torch.zeros(shape, dtype=torch.float64, device=rollout.mask.device)
        for source, rows in self._rows_by_source(rollout):
            if source in self.served:
                own = take(sample_of(rollout), rows)
                found[rows] = self.served[source].judge(own, rollout.mask[rows])[1]
        return replace(rollout, sample=replace(sample, likeliest=found))

    def compare(self, rollout: Rollout) -> list[Compared]:
        """The values of each teacher at the masked steps that it judges."""
        number = rollout.mask.flatten().cumsum(0).view(rollout.mask.shape) - 1
        return [
            self._compare(source, rollout, rows, number[rows][rollout.mask[rows]])
            for source, rows in self._rows_by_source(rollout)
        ]

    def _compare(self, source: str, rollout: Rollout, rows: Tensor, steps: Tensor) -> Compared:
        """The values of a source's teacher for its rows [n], at these steps of the pass."""
        mask, own = rollout.mask[rows], {"steps": steps, "distance": self.distance}
        if source in self.served:
            likeliest = rollout.sample.likeliest[rows, : mask.shape[1]]
            return LikeliestTokens(states=likeliest[mask], **own)
        scorer = self._move_scorer(source, mask.device)
        states = scorer.states(take(sample_of(rollout), rows), mask)
        return HiddenStates(states=states, head=scorer.head, **own)

    def _move_scorer(self, source: str, device: torch.device) -> TokenLogProbComputer:
        """The local teacher of a source, on the device of the rows."""
        move(self.scorers[source].model, device)
        return self.scorers[source]

    def _rows_by_source(self, rollout: Rollout) -> Iterator[tuple[str, Tensor]]:
        """Each source whose teacher judges a step, and its rows, [n] int64."""
        judged = taught_steps(rollout).any(1)
        for source, places in rows_by_teacher(rollout.prompts, {*self.scorers, *self.served}):
            rows = torch.tensor(places, device=judged.device)
            rows = rows[judged[rows]]
            if len(rows):
                yield source, rows

    def _explain_long(self, rollout: Rollout) -> Iterator[str]:
        """Why the run cannot go on, for each source of which a row is too long for its teacher."""
        sample = sample_of(rollout)
        if sample.tokens.shape[1] <= self.positions:  # known without waiting for a GPU
            return
        for source, rows in self._rows_by_source(rollout):
            longest = longest_context(take(sample, rows), rollout.mask[rows])
            if longest > (most := self.room.get(source, longest)):
                larger = "resume with a larger --max-model-len of its server, or "
                yield (
                    f"algorithm.teachers.folders: the teacher of {source} reads at most {most} "
                    f"tokens, but a row has {longest}; {larger if source in self.served else ''}"
                    "start a new run with a lower rollout.max_new_tokens or environment.max_tokens"
                )

    # A teacher that averages the policy's weights.

    def follow(self) -> None:
        """Follow an update of the policy."""
        if self.average is not None:
            self.average.follow()

    def state(self) -> dict[str, Tensor]:
        """State of the teachers. Of any shape [...]."""
        return {} if self.average is None else self.average.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned; other keys are ignored. Of any shape [...]."""
        if self.average is not None:
            self.average.load_state(state)


def sample_of(rollout: Rollout) -> TokenSample:
    """The rows as teachers read them."""
    sample: TokenSample = rollout.sample
    return sample if sample.for_teacher is None else sample.for_teacher
