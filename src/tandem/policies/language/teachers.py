"""Teachers of a language policy: frozen models of its own tokens, each asked about its sources."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from torch import Tensor, nn

from tandem.contracts import fraction, positive
from tandem.losses.divergence import Divergence, Side, StateDivergence
from tandem.policies.language.average import WeightAverage
from tandem.policies.language.chat import Chat
from tandem.policies.language.compared import Compared
from tandem.policies.language.logprob import TokenLogProbComputer
from tandem.policies.language.pretrained import Numerics, positions, pretrained
from tandem.policies.language.records import TokenSample
from tandem.policies.language.same_tokens import first_difference
from tandem.policies.teachers import Teachers, rows_by_teacher, weights_of
from tandem.policies.weights import move
from tandem.types import Rollout, take, taught_steps

if TYPE_CHECKING:
    from tandem.policies.language.policy import LanguagePolicy

log = logging.getLogger(__name__)


SELF = "self"  # in place of a folder: the policy itself


@dataclass(frozen=True, kw_only=True)
class TokenTeachers(Teachers):
    """Who teaches what: a run directory, a folder in Hugging Face format, a name on the hub, or
    `self`, the policy itself by older weights."""

    of_texts = True

    dtype: Literal["float32", "bfloat16", "auto"] | None = None  # None: the policy's
    # Of `self`: the share of the live weights that it takes over with every update; 0: none.
    average: Annotated[float, fraction] | None = None
    # Of each state, where a loss reads one: over all tokens, or over the likeliest.
    divergence: Divergence | None = None
    top_k: Annotated[int, positive] | None = None
    tail: bool = True
    support: Side | None = None

    def __post_init__(self) -> None:
        Teachers.__post_init__(self)
        if self.teaches_itself and self.average is None:
            raise ValueError(
                "algorithm.teachers.average=null, and the policy teaches itself; set it to the "
                "share of its weights that the teacher takes over with every update, such as 0.05"
            )
        if self.average is not None and not self.teaches_itself:
            raise ValueError(
                f"algorithm.teachers.average={self.average} is of a teacher that is the policy "
                "itself, and there is none; set it to null, or algorithm/teachers=self"
            )
        if self.divergence is None and (self.top_k, self.tail, self.support) != (None, True, None):
            raise ValueError(
                "algorithm.teachers.top_k, tail and support are of a divergence over the tokens of "
                "a state, and none is taken; leave them out, or take algorithm=gkd"
            )

    @property
    def teaches_itself(self) -> bool:
        return SELF in self.folders.values()

    def check(self) -> None:
        for source, folder in self.folders.items():
            self.check_run(source)
            place = weights_of(folder)
            if folder != SELF and place.is_dir() and not (place / "config.json").is_file():
                raise ValueError(
                    f"{self.given(source)}: there is no config.json in it; give the directory of a "
                    "finished run of a language model, a folder in Hugging Face format, or a name "
                    "on the hub"
                )

    def load(self, policy: LanguagePolicy) -> LoadedTokenTeachers:
        """`policy`: the student, by now with its weights and its tokenizer.

        Raises ValueError for a teacher of other tokens.
        """
        average = None
        if self.teaches_itself:
            average = WeightAverage(policy.scorer.model, rate=self.average)
        known: dict[str, TokenLogProbComputer] = {}
        for source, folder in self.folders.items():
            if folder == SELF:
                known[folder] = self._scorer(average.network, policy)
            elif folder not in known:
                known[folder] = self._loaded(source, policy)
        return LoadedTokenTeachers(
            {source: known[folder] for source, folder in self.folders.items()},
            distance=self.distance,
            average=average,
        )

    @property
    def distance(self) -> StateDivergence | None:
        if self.divergence is None:
            return None
        return StateDivergence(
            of=self.divergence, top_k=self.top_k, tail=self.tail, support=self.support
        )

    def _loaded(self, source: str, policy: LanguagePolicy) -> TokenLogProbComputer:
        path, key = weights_of(self.folders[source]), f"algorithm.teachers.folders.{source}"
        model, tokenizer = pretrained(str(path), None, self._numerics(policy), key=key)
        if (said := first_difference(policy.chat, Chat(tokenizer, policy.talk))) is not None:
            raise ValueError(
                f"{self.given(source)}: {said}; a teacher reads the policy's own token ids, so "
                "take one of the same tokenizer"
            )
        scorer = self._scorer(model.requires_grad_(False), policy)
        limit_rows(self.given(source), scorer, policy.scorer)
        return scorer

    def _scorer(self, model: nn.Module, policy: LanguagePolicy) -> TokenLogProbComputer:
        return TokenLogProbComputer(
            model,
            numerics=self._numerics(policy),
            memory=policy.memory,
            precision=policy.precision,
        )

    def _numerics(self, policy: LanguagePolicy) -> Numerics:
        dtype = self.dtype or policy.numerics.dtype
        return replace(
            policy.numerics, dtype=dtype, gradient_checkpointing=False, torch_compile=False
        )


def limit_rows(given: str, teacher: TokenLogProbComputer, student: TokenLogProbComputer) -> None:
    """Leave out the teacher's rows of logits that the policy has not: of one tokenizer, sizes of a
    family differ in those that belong to no token."""
    own, other = student.vocabulary, teacher.vocabulary
    if own != other:
        log.warning(
            "%s has logits of %d tokens and the policy of %d; those beyond %d, which the tokenizer "
            "does not have, are left out",
            given, other, own, min(own, other),
        )  # fmt: skip
        teacher.head, teacher.vocabulary = (
            first_rows(teacher.head, min(own, other)),
            min(own, other),
        )


def first_rows(head: Callable[[Tensor], Tensor], count: int) -> Callable[[Tensor], Tensor]:
    """A head without its last logits: [N, H] -> [N, count]."""
    return lambda states: head(states)[:, :count]


class LoadedTokenTeachers:
    """The teachers with their weights, whole on every rank."""

    def __init__(
        self,
        scorers: Mapping[str, TokenLogProbComputer],
        *,
        distance: StateDivergence | None = None,
        average: WeightAverage | None = None,
    ) -> None:
        self.scorers, self.distance, self.average = scorers, distance, average

    @property
    def positions(self) -> int | None:
        """Tokens that every one of them reads; None: the families name no limit."""
        known = [positions(scorer.model) for scorer in self.scorers.values()]
        return min((most for most in known if most is not None), default=None)

    def logp(self, rollout: Rollout) -> Tensor:
        """How likely each row's teacher thinks its tokens, [B, T] nats; 0 outside the mask and on
        rows that it does not judge."""
        found = torch.zeros(rollout.mask.shape, device=rollout.mask.device)
        for scorer, rows in self._asked(rollout):
            sample, mask = take(sample_of(rollout), rows), rollout.mask[rows]
            said = scorer.in_parts(sample, mask).logp
            found = found.to(said.dtype).index_copy(0, rows, said)
        return found

    def compare(self, rollout: Rollout) -> list[Compared]:
        """What each teacher that is asked says of the steps of the mask that it judges."""
        number = rollout.mask.flatten().cumsum(0).view(rollout.mask.shape) - 1
        found = []
        for scorer, rows in self._asked(rollout):
            mask = rollout.mask[rows]
            own = Compared(
                steps=number[rows][mask],
                states=scorer.states(take(sample_of(rollout), rows), mask),
                head=scorer.head,
                distance=self.distance,
            )
            found.append(own)
        return found

    def _asked(self, rollout: Rollout) -> Iterator[tuple[TokenLogProbComputer, Tensor]]:
        """Each teacher that judges a step, on the device of the rows, and its rows, [n] int64."""
        judged = taught_steps(rollout).any(1)
        for source, places in rows_by_teacher(rollout.prompts, self.scorers):
            rows = torch.tensor(places, device=judged.device)
            rows = rows[judged[rows]]
            if len(rows):
                self._check_room(source, rollout)
                move(self.scorers[source].model, judged.device)
                yield self.scorers[source], rows

    def _check_room(self, source: str, rollout: Rollout) -> None:
        most = positions(self.scorers[source].model)
        longest = sample_of(rollout).tokens.shape[1]
        if most is not None and longest > most:
            raise ValueError(
                f"algorithm.teachers.folders: the teacher of {source} reads at most {most} tokens, "
                f"and a row has {longest}; lower rollout.max_new_tokens or "
                "rollout.max_prompt_tokens"
            )

    # Of a teacher that is the policy itself.

    def follow(self) -> None:
        """An update was made."""
        if self.average is not None:
            self.average.follow()

    def state(self) -> dict[str, Tensor]:
        """What they remember. Of any shape [...]."""
        return {} if self.average is None else self.average.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Put back what `state` gave, among other things. Of any shape [...]."""
        if self.average is not None:
            self.average.load_state(state)


def sample_of(rollout: Rollout) -> TokenSample:
    """The rows as teachers read them."""
    sample: TokenSample = rollout.sample
    return sample if sample.for_teacher is None else sample.for_teacher
