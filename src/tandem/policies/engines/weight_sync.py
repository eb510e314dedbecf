"""Weight synchronisation: when an engine gets new weights, and when it sleeps."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import torch
from torch import Tensor

from tandem import distributed
from tandem.policies.engines.protocol import Forgotten, RolloutEngine, Weights
from tandem.policies.language.records import Answers, Endings, Sampling
from tandem.stop import EngineUnavailable

STARTS = 3  # of an engine within one call, that weights are handed over again for


class WeightSync:
    """An engine, and the weights it is to have: handed over when they are asked for, not when they
    move, so that several updates cost one journey and a run that samples nothing none.

    Ranks share one engine. The first one hands over, while the others wait.
    """

    def __init__(self, engine: RolloutEngine, weights: Weights, *, sleeps: bool = False) -> None:
        """sleeps: during training."""
        self.engine, self.weights, self.sleeps = engine, weights, sleeps
        self.run = ""  # named at the first handover: ranks do not know of each other before
        self.given = 0  # times that weights were handed over
        self.asleep = False
        self.behind = True  # whether the weights are others than the engine's

    def outdated(self) -> None:
        """The weights have moved, or are others altogether."""
        self.behind = True

    def refresh(self) -> None:
        """Make the engine ready to answer. All ranks come here together, or find nothing to do."""
        behind = self.behind
        if not behind and not self.asleep:
            return
        if not self.run:
            # Two runs, or a run and its successor, must not take each other's weights for theirs.
            self.run = distributed.all_gather_object([secrets.token_hex(4)])[0]
        fault = ""
        if distributed.is_first():
            try:
                self._prepare(behind)
            except EngineUnavailable as away:  # the others must hear of it, not wait
                fault = str(away)
        self._agree(fault)
        self.given += behind
        if not distributed.is_first():
            self.engine.follow(self.weights, self.version)
        self.behind = self.asleep = False

    def rest(self) -> None:
        """Sampling is over for now, and the memory is wanted for training."""
        if not self.sleeps or self.asleep:
            return
        distributed.all_sum(torch.zeros(()))  # everybody has its answers
        fault = ""
        if distributed.is_first():
            try:
                self.engine.sleep(keep=self.weights.adapter)
            except EngineUnavailable as away:
                fault = str(away)
        self._agree(fault)
        self.asleep = True

    def answer(
        self, prompts: Sequence[list[int]], keys: Tensor, *, sampling: Sampling, endings: Endings
    ) -> Answers:
        """The engine's answer under weights that it has by now.

        `keys`: [B] int64. Raises EngineUnavailable where it forgets them again and again.
        """
        self.refresh()
        for _ in range(STARTS):
            try:
                return self.engine.answer(prompts, keys, sampling=sampling, endings=endings)
            except Forgotten:
                self.engine.renew(self.weights, self.version)
        raise EngineUnavailable(
            f"the engine lost the weights it was given {STARTS} times in a row; see its log for "
            "why it starts again and again"
        )

    @property
    def version(self) -> str:
        """What the engine calls the weights that it was given last."""
        return f"{self.run}-{self.given}"

    def _prepare(self, behind: bool) -> None:
        if not self.given:
            self.asleep = self.engine.is_asleep()  # a run that was killed may have left it so
        # Weights that were not kept are needed again, moved or not.
        lost = self.asleep and not self.weights.adapter
        if self.asleep:
            self.engine.wake("weights")
        if behind or lost:
            self.engine.sync(self.weights, f"{self.run}-{self.given + behind}")
        if self.asleep:
            self.engine.wake("kv_cache")

    def _agree(self, fault: str) -> None:
        faults = [said for said in distributed.all_gather_object([fault]) if said]
        if faults:
            raise EngineUnavailable(faults[0])
