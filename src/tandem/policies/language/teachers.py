"""Teachers of a language policy: frozen models with its tokenizer, each for its own sources."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Literal

from torch import Tensor, nn

from tandem.contracts import fraction, positive
from tandem.hub import refuse_absent
from tandem.losses.divergence import Divergence, Side, StateDivergence
from tandem.policies.language.average import WeightAverage
from tandem.policies.language.chat import Chat
from tandem.policies.language.loaded_teachers import LoadedTokenTeachers
from tandem.policies.language.logprob import TokenLogProbComputer
from tandem.policies.language.pretrained import Numerics, load_model
from tandem.policies.language.same_tokens import first_difference
from tandem.policies.language.teacher_server import ServedTeacher, TeacherServer
from tandem.policies.teachers import Teachers, weights_of
from tandem.remote import is_address

if TYPE_CHECKING:
    from tandem.policies.language.policy import LanguagePolicy

log = logging.getLogger(__name__)


SELF = "self"  # instead of a folder: the policy itself


@dataclass(frozen=True, kw_only=True)
class TokenTeachers(Teachers):
    """The teacher of each source: a run directory, a folder in Hugging Face format, a name on the
    hub, the address of a server, or `self`, an average of the policy's own weights."""

    of_texts = True

    dtype: Literal["float32", "bfloat16", "auto"] | None = None  # None: the policy's
    # Share of the live weights that the average of `self` takes in each update; 0: none.
    average: Annotated[float, fraction] | None = None
    # Divergence from a teacher at each state, if a loss reads it.
    divergence: Divergence | None = None
    top_k: Annotated[int, positive] | None = None  # tokens that the divergence compares; null: all
    tail: bool = True  # all other tokens are one more entry; else the top k are renormalised
    support: Side | None = None  # whose top k; null: the side that the divergence weights most
    server: TeacherServer = field(default_factory=TeacherServer)  # for teachers at an address

    def __post_init__(self) -> None:
        Teachers.__post_init__(self)
        if self.addresses and self.distance is not None:
            self.check_likeliest()
        self.server.check_sources(self.addresses)
        if self.teaches_itself and self.average is None:
            raise ValueError(
                "algorithm.teachers.average=null, but the policy is its own teacher; set it to the "
                "share of live weights that the average takes in each update, such as 0.05"
            )
        if self.average is not None and not self.teaches_itself:
            raise ValueError(
                f"algorithm.teachers.average={self.average} needs a teacher that is the policy "
                "itself; set it to null, or set algorithm/teachers=self"
            )
        if self.divergence is None and (self.top_k, self.tail, self.support) != (None, True, None):
            raise ValueError(
                "algorithm.teachers.top_k, tail and support need a divergence over tokens, and "
                "algorithm.teachers.divergence=null; leave them out, or choose algorithm=gkd"
            )
        if self.top_k is None and (self.tail, self.support) != (True, None):
            raise ValueError(
                "algorithm.teachers.tail and support are of the top k tokens, and "
                "algorithm.teachers.top_k=null compares all; set top_k=100, or leave them out"
            )
        if self.dtype is not None and not self.local:
            raise ValueError(
                f"algorithm.teachers.dtype={self.dtype}: no teacher is loaded from a folder; set "
                "it to null"
            )

    @property
    def teaches_itself(self) -> bool:
        return SELF in self.folders.values()

    @property
    def addresses(self) -> dict[str, str]:
        """The server address of each source that has one, without a trailing slash."""
        return {name: x.rstrip("/") for name, x in self.folders.items() if is_address(x)}

    @property
    def local(self) -> set[str]:
        """The folders, and names on the hub, whose weights are loaded here."""
        known = self.folders.items()
        return {x for source, x in known if x != SELF and source not in self.addresses}

    def check_likeliest(self) -> None:
        """Raise ValueError for a divergence over tokens that servers do not report."""
        if self.top_k is None:
            raise ValueError(
                "algorithm.teachers.top_k=null: a server reports only its most likely tokens; set "
                "algorithm.teachers.top_k to 20 or to the server's --max-logprobs"
            )
        if self.distance.leading != "teacher":
            raise ValueError(
                "algorithm.teachers.support=student: a server does not know the policy's most "
                "likely tokens; set algorithm.teachers.support=teacher"
            )

    def check(self) -> None:
        for source, folder in self.folders.items():
            if source in self.addresses:
                self.server.of(source).endpoint(self.addresses[source])
                continue
            self.check_run(source)
            refuse_absent(folder, key=f"algorithm.teachers.folders.{source}")
            place = weights_of(folder)
            if folder != SELF and place.is_dir() and not (place / "config.json").is_file():
                raise ValueError(
                    f"{self.as_override(source)}: there is no config.json in it; give the "
                    "directory of a finished run of a language model, a folder in Hugging Face "
                    "format, or a name on the hub"
                )

    def load(self, policy: LanguagePolicy) -> LoadedTokenTeachers:
        """`policy`: the student, with weights and tokenizer loaded.

        Raises ValueError for a teacher with a different tokenizer.
        """
        average = None
        if self.teaches_itself:
            average = WeightAverage(policy.scorer.model, rate=self.average)
        known: dict[str, TokenLogProbComputer] = {}
        served = self._served_teachers(policy)
        for source, folder in self.folders.items():
            if source in self.addresses:
                continue
            if folder == SELF:
                known[folder] = self._scorer(average.network, policy)
            elif folder not in known:
                known[folder] = self._load_teacher(source, policy)
        return LoadedTokenTeachers(
            {source: known[x] for source, x in self.folders.items() if x in known},
            served=served,
            distance=self.distance,
            average=average,
        )

    def _served_teachers(self, policy: LanguagePolicy) -> dict[str, ServedTeacher]:
        """The teacher of each source with a server; sources may share one.

        Raises ValueError for a server that does not answer.
        """
        found, top_k = {}, self.top_k if self.distance is not None else 0
        of = {source: (url, self.server.of(source)) for source, url in self.addresses.items()}
        for source, asked in of.items():
            if asked not in found:
                found[asked] = ServedTeacher(self.as_override(source), *asked, top_k=top_k)
                found[asked].check_tokens(policy.chat)
        if found and policy.sampling.temperature != 1:
            raise ValueError(
                f"rollout.temperature={policy.sampling.temperature}: a teacher on a server reports "
                "log-probabilities at temperature 1; set rollout.temperature=1"
            )
        return {source: found[asked] for source, asked in of.items()}

    @property
    def distance(self) -> StateDivergence | None:
        if self.divergence is None:
            return None
        return StateDivergence(
            of=self.divergence, top_k=self.top_k, tail=self.tail, support=self.support
        )

    def _load_teacher(self, source: str, policy: LanguagePolicy) -> TokenLogProbComputer:
        path, key = weights_of(self.folders[source]), f"algorithm.teachers.folders.{source}"
        model, tokenizer = load_model(str(path), None, self._numerics(policy), key=key)
        if (said := first_difference(policy.chat, Chat(tokenizer, policy.talk))) is not None:
            raise ValueError(
                f"{self.as_override(source)}: {said}; a teacher reads the policy's own token ids, "
                "so choose one with the same tokenizer"
            )
        scorer = self._scorer(model.requires_grad_(False), policy)
        limit_rows(self.as_override(source), scorer, policy.scorer)
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
    """Drop the teacher's logits that the policy does not have: in one family, models of different
    sizes have different numbers of padding rows."""
    own, other = student.vocabulary, teacher.vocabulary
    if own != other:
        log.warning(
            "%s has logits of %d tokens and the policy of %d; those beyond %d, which the tokenizer "
            "does not have, are ignored",
            given, other, own, min(own, other),
        )  # fmt: skip
        teacher.head, teacher.vocabulary = (
            first_rows(teacher.head, min(own, other)),
            min(own, other),
        )


def first_rows(head: Callable[[Tensor], Tensor], count: int) -> Callable[[Tensor], Tensor]:
    """A head without its last logits: [N, H] -> [N, count]."""
    return lambda states: head(states)[:, :count]
