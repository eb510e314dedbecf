"""When an engine is given new weights, when it sleeps, and how old are those of its answers."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import torch
from torch import Tensor

from tandem import ranks
from tandem.policies.decoding import Answers, Endings
from tandem.policies.engines.protocol import Forgotten, Served, Weights
from tandem.policies.sampling import Sampling
from tandem.stop import Away

STARTS = 3  # of an engine within one call, that weights are handed over again for


class Supply:
    """An engine, and the weights it is to have: handed over when they are asked for, not when they
    move, so that several updates cost one journey and a run that samples nothing none.

    Ranks share one engine. The first one hands over, while the others wait.
    """

    def __init__(
        self, engine: Served, weights: Weights, *, every: int = 1, sleeps: bool = False
    ) -> None:
        """every: iterations that answers may be behind, and one more; sleeps: during training."""
        self.engine, self.weights, self.every, self.sleeps = engine, weights, every, sleeps
        # Two runs, or a run and its successor, must not take each other's weights for their own.
        self.run = ranks.listed([secrets.token_hex(4)])[0]
        self.given = 0  # times that weights were handed over
        self.moved = self.asleep = False
        self.age: int | None = None  # iterations that its weights are behind; None: never given

    def outdated(self) -> None:
        """The weights have moved."""
        self.moved = True

    def replaced(self) -> None:
        """They are others altogether."""
        self.age = None

    def ended(self) -> None:
        """An iteration is over."""
        if self.age is not None:
            self.age += self.moved
        self.moved = False

    def refresh(self, *, newest: bool = False) -> None:
        """Make the engine ready to answer. All ranks come here together, or find nothing to do."""
        behind = self.age is None or self.moved or self.age >= (1 if newest else self.every)
        if not behind and not self.asleep:
            return
        fault = ""
        if ranks.is_first():
            try:
                self._prepare(behind)
            except Away as away:  # the others must hear of it, not wait
                fault = str(away)
        self._agree(fault)
        self.given += behind
        if not ranks.is_first():
            self.engine.follow(self.weights, self.version)
        if behind:
            self.age, self.moved = 0, False
        self.asleep = False

    def rest(self) -> None:
        """Sampling is over for now, and the memory is wanted for training."""
        if not self.sleeps or self.asleep:
            return
        ranks.total(torch.zeros(()))  # everybody has its answers
        fault = ""
        if ranks.is_first():
            try:
                self.engine.sleep(keep=self.weights.adapter)
            except Away as away:
                fault = str(away)
        self._agree(fault)
        self.asleep = True

    def answer(
        self, prompts: Sequence[list[int]], keys: Tensor, *, sampling: Sampling, endings: Endings
    ) -> Answers:
        self.refresh()
        for _ in range(STARTS):
            try:
                return self.engine.answer(prompts, keys, sampling=sampling, endings=endings)
            except Forgotten:
                self.engine.sync(self.weights, self.version)
        raise Away(
            f"the engine lost the weights it was given {STARTS} times in a row; see its log for "
            "why it starts again and again"
        )

    @property
    def version(self) -> str:
        """What the engine calls the weights that it was given last."""
        return f"{self.run}-{self.given}"

    def _prepare(self, behind: bool) -> None:
        if self.age is None:
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
        faults = [said for said in ranks.listed([fault]) if said]
        if faults:
            raise Away(faults[0])
