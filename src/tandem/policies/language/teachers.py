"""Teachers of a language policy: frozen models of its own tokens, each asked about its sources."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from tandem.policies.language.chat import Chat
from tandem.policies.language.logprob import TokenLogProbComputer
from tandem.policies.language.pretrained import positions, pretrained
from tandem.policies.language.same_tokens import first_difference
from tandem.policies.teachers import Teachers, rows_by_teacher, weights_of
from tandem.policies.weights import move
from tandem.types import Rollout, take

if TYPE_CHECKING:
    from tandem.policies.language.policy import LanguagePolicy

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TokenTeachers(Teachers):
    """Who teaches what: a run directory, a folder in Hugging Face format, or a name on the hub."""

    of_texts = True

    dtype: Literal["float32", "bfloat16", "auto"] | None = None  # None: the policy's

    def check(self) -> None:
        for source, folder in self.folders.items():
            self.check_run(source)
            place = weights_of(folder)
            if place.is_dir() and not (place / "config.json").is_file():
                raise ValueError(
                    f"{self.given(source)}: there is no config.json in it; give the directory of a "
                    "finished run of a language model, a folder in Hugging Face format, or a name "
                    "on the hub"
                )

    def load(self, policy: LanguagePolicy) -> TeacherModels:
        """`policy`: the student, by now with its weights and its tokenizer.

        Raises ValueError for a teacher of other tokens.
        """
        known: dict[str, TokenLogProbComputer] = {}
        for source, folder in self.folders.items():
            if folder not in known:
                known[folder] = self._loaded(source, policy)
        return TeacherModels({source: known[folder] for source, folder in self.folders.items()})

    def _loaded(self, source: str, policy: LanguagePolicy) -> TokenLogProbComputer:
        given, dtype = self.given(source), self.dtype or policy.numerics.dtype
        numerics = replace(
            policy.numerics, dtype=dtype, gradient_checkpointing=False, torch_compile=False
        )
        path, key = weights_of(self.folders[source]), f"algorithm.teachers.folders.{source}"
        model, tokenizer = pretrained(str(path), None, numerics, key=key)
        if (said := first_difference(policy.chat, Chat(tokenizer, policy.talk))) is not None:
            raise ValueError(
                f"{given}: {said}; a teacher reads the policy's own token ids, so take one of the "
                "same tokenizer"
            )
        scorer = TokenLogProbComputer(
            model.requires_grad_(False),
            numerics=numerics,
            memory=policy.memory,
            precision=policy.precision,
        )
        limit_rows(given, scorer, policy.scorer)
        return scorer


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


class TeacherModels:
    """The teachers with their weights, whole on every rank."""

    def __init__(self, scorers: Mapping[str, TokenLogProbComputer]) -> None:
        self.scorers = scorers

    def logp(self, rollout: Rollout) -> Tensor:
        """How likely each row's teacher thinks its tokens, [B, T] nats; 0 outside the mask."""
        found = torch.zeros(rollout.mask.shape, device=rollout.mask.device)
        for source, places in rows_by_teacher(rollout.prompts, self.scorers):
            rows = torch.tensor(places, device=found.device)
            scorer = self._ready(source, rollout)
            said = scorer.in_parts(take(rollout.sample, rows), rollout.mask[rows]).logp
            found = found.to(said.dtype).index_copy(0, rows, said)
        return found

    def _ready(self, source: str, rollout: Rollout) -> TokenLogProbComputer:
        """On the device of the rows, which it has positions for."""
        scorer, longest = self.scorers[source], rollout.sample.tokens.shape[1]
        most = positions(scorer.model)
        if most is not None and longest > most:
            raise ValueError(
                f"algorithm.teachers.folders: the teacher of {source} reads at most {most} tokens, "
                f"and a row has {longest}; lower rollout.max_new_tokens or "
                "rollout.max_prompt_tokens"
            )
        move(scorer.model, rollout.mask.device)
        return scorer
