"""Weight synchronisation: when an engine gets new weights, and when it sleeps."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from tandem import distributed
from tandem.policies.engines.answer_checks import AnswerChecks, skip_checks
from tandem.policies.engines.journey import Journey
from tandem.policies.engines.protocol import (
    Engine,
    Forgotten,
    Handover,
    RolloutEngine,
    Weights,
    number_of,
)
from tandem.policies.language.records import Answers, Endings, Sampling
from tandem.stop import EngineUnavailable

STARTS = 3  # times within one call that an engine gets lost weights again


class WeightSync:
    """An engine and its weights, which are handed over before sampling, not after each update:
    several updates cost one handover, and a run that does not sample costs none. A run that samples
    ahead publishes them instead, and trains during the handover.

    Ranks share one engine. The first one hands over while the others wait.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        weights: Weights,
        *,
        sleeps: bool = False,
        handover: Handover = "drain",
        staleness: int = 0,
        vocabulary: int | None = None,
    ) -> None:
        """sleeps: during training; staleness: iterations by which sampling may be ahead;
        vocabulary: of the token ids in answers; None: no check here."""
        if handover not in engine.handover_modes:
            raise ValueError(
                f"rollout.handover={handover}: {type(engine).__name__} supports "
                f"{' or '.join(sorted(engine.handover_modes))}; set it to one of these"
            )
        self.engine, self.weights, self.sleeps = engine, weights, sleeps
        self.handover, self.journey = handover, Journey()
        self.turn = nullcontext() if engine.concurrent else threading.Lock()
        engine.keep(staleness + 1)
        self.checked = skip_checks if vocabulary is None else AnswerChecks(vocabulary)
        self.run = ""  # named at the first handover: ranks cannot communicate before
        self.given = 0  # number of handovers
        self.handed = weights  # last; a copy if the live ones are sharded, or change meanwhile
        self.asleep = False
        self.behind = True  # whether the weights differ from the engine's
        self.published = 0  # the newest handover, which may still be in progress
        self.before_refresh: Callable[[], None] = lambda: None  # a run that samples ahead publishes

    def mark_outdated(self) -> None:
        """Mark the engine's weights as outdated."""
        self.behind = True

    def refresh(self) -> None:
        """Make the engine ready to answer. Collective, unless there is nothing to do."""
        if self.behind:
            self.before_refresh()
        self.journey.end()
        behind = self.behind
        if not behind and not self.asleep:
            return
        self._name_run()
        if behind:
            self.handed = self.weights.copy_to_host() if self.weights.is_sharded else self.weights
        self._agree(fault_on_first(lambda: self._prepare(behind)))
        self.given += behind
        self.published = self.given
        if not distributed.is_first():
            self.engine.follow(self.handed, self.version)
        self.behind = self.asleep = False

    def publish(self) -> None:
        """Start to hand over the present weights while training continues. Collective; raises the
        error of the handover before."""
        self.journey.end()
        self._name_run()
        self.published = self.given + 1
        handed, version = self.weights.copy_to_host(), f"{self.run}-{self.published}"
        self.behind = False
        if self.handover == "drain":
            self.journey.close()
        self.journey.begin(lambda: self._travel(handed, version))

    @contextmanager
    def under_way(self, number: int | None = None) -> Iterator[BegunRows]:
        """An engine for rows that start now, which threads may call until the context ends. Its
        weights are those that arrived last; pinned, they stay the same for all rows. `number`: the
        handover to wait for, and pinned, the one whose weights are used."""
        with self.journey.rows(lambda: self.given >= (number or 1)):
            pinned = number is not None and self.handover == "pinned"
            yield BegunRows(self, number if pinned else self.given)

    def _travel(self, handed: Weights, version: str) -> None:
        drained = self.journey.drain() if self.handover == "drain" else nullcontext()
        with drained, self.journey.renewing:
            self.journey.meet("")  # no rank has a row in flight, or gives lost weights again
            self.journey.meet(fault_on_first(lambda: self._give(handed, version)))
            if not distributed.is_first():
                self.engine.follow(handed, version)
            with self.journey.arriving():
                self.handed, self.given = handed, number_of(version)

    def _give(self, weights: Weights, version: str) -> None:
        give = self.engine.swap if self.handover == "in_flight" else self.engine.sync
        give(weights, version)

    def _name_run(self) -> None:
        """Draw a name, so that no run, nor its successor, takes another's weights for its own."""
        if not self.run:
            self.run = distributed.all_gather_object([secrets.token_hex(4)])[0]
            self.journey.group = distributed.group_of_threads()

    def rest(self) -> None:
        """Let the engine sleep, if it shall, as training needs the memory."""
        if not self.sleeps or self.asleep:
            return
        distributed.all_sum(torch.zeros(()))  # waits until every rank has its answers
        keep = self.weights.adapter
        self._agree(fault_on_first(lambda: self.engine.sleep(keep=keep)))
        self.asleep = True

    def answer(
        self, prompts: Sequence[list[int]], keys: Tensor, *, sampling: Sampling, endings: Endings
    ) -> Answers:
        """The engine's answers under the current weights.

        keys: [P, G] int64. Raises EngineUnavailable if the engine keeps losing the weights.
        """
        self.refresh()
        answers = self.renewing(
            lambda: self.engine.answer(prompts, keys, sampling=sampling, endings=endings)
        )
        return self.checked(self.engine.answer, answers, keys, sampling)

    def renewing(self, ask: Callable[[], Answers], version: str | None = None) -> Answers:
        """The answers; an engine that lost its weights gets those of `version`, or the newest, and
        is called again."""
        for _ in range(STARTS):
            try:
                with self.turn:
                    return ask()
            except Forgotten:
                with self.journey.renewing, self.turn:
                    self.engine.renew(self.handed, version or self.version)
        raise EngineUnavailable(
            f"the engine lost its weights {STARTS} times in a row; see its log for why it keeps "
            "restarting"
        )

    @property
    def version(self) -> str:
        """The engine's name of the newest weights."""
        return f"{self.run}-{self.given}"

    def _prepare(self, behind: bool) -> None:
        if not self.given:
            self.asleep = self.engine.is_asleep()  # a killed run may have left it asleep
        # Weights that were not kept are needed again, changed or not.
        lost = self.asleep and not self.weights.adapter
        if self.asleep:
            self.engine.wake("weights")
        if behind or lost:
            self._give(self.handed, f"{self.run}-{self.given + behind}")
        if self.asleep:
            self.engine.wake("kv_cache")

    def _agree(self, fault: str) -> None:
        faults = [said for said in distributed.all_gather_object([fault]) if said]
        if faults:
            raise EngineUnavailable(faults[0])


def fault_on_first(call: Callable[[], None]) -> str:
    """The error of a call to the engine, which only the first rank makes; "" without one, and on
    other ranks, which must learn of it rather than wait."""
    if not distributed.is_first():
        return ""
    try:
        call()
    except EngineUnavailable as away:
        return str(away)
    return ""


class BegunRows(Engine):
    """An engine for rows in flight."""

    def __init__(self, sync: WeightSync, number: int) -> None:
        self.sync, self.version = sync, f"{sync.run}-{number}"

    @property
    def number(self) -> int:
        """The handover with which they started."""
        return number_of(self.version)

    def answer(
        self, prompts: Sequence[list[int]], keys: Tensor, *, sampling: Sampling, endings: Endings
    ) -> Answers:
        """keys: [P, G] int64."""
        asked = {"sampling": sampling, "endings": endings}
        engine, version = self.sync.engine, self.version
        if self.sync.handover == "pinned":
            answers = self.sync.renewing(
                lambda: engine.answer_as(version, prompts, keys, **asked), version
            )
            return self.sync.checked(engine.answer_as, answers, keys, sampling)
        answers = self.sync.renewing(lambda: engine.answer(prompts, keys, **asked))
        return self.sync.checked(engine.answer, answers, keys, sampling)
