"""Several engines as one: each takes whole groups as it has room for them."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from tandem.policies.engines.protocol import (
    Forgotten,
    Handover,
    RolloutEngine,
    Weights,
)
from tandem.policies.engines.shared_groups import Groups, concat_answers
from tandem.policies.language.records import Answers, Endings, Sampling
from tandem.stop import EngineUnavailable
from tandem.threads import map_in_threads

RENEWALS = 3  # of one engine within one call, before it counts as gone


class Fleet(RolloutEngine):
    """Engines that answer one another's groups, with the same seeds, when one of them is gone.

    That one is tried again at the next handover of weights. The samples do not depend on which
    engine answers; only the time does.
    """

    concurrent: ClassVar[bool] = True

    def __init__(self, engines: Sequence[RolloutEngine], *, concurrency: int) -> None:
        """concurrency: rows in flight at each."""
        self.engines, self.concurrency = tuple(engines), concurrency
        self.faults: dict[RolloutEngine, str] = {}  # of those that are gone
        self.newest: tuple[Weights, str] | None = None  # what was handed over last, and its version
        # Of handovers: an engine that started again during one gets one version at a time.
        self.renewing = threading.Lock()
        self.rows, self.counting = Counter[RolloutEngine](), threading.Lock()  # in flight at each

    @property
    def handover_modes(self) -> frozenset[Handover]:
        """The modes that all engines support."""
        return frozenset.intersection(*(engine.handover_modes for engine in self.engines))

    @property
    def living(self) -> list[RolloutEngine]:
        return [engine for engine in self.engines if engine not in self.faults]

    @property
    def capacity(self) -> int:
        return self.concurrency * len(self.engines)

    @property
    def handovers(self) -> Sequence[Path]:
        return self.living[0].handovers

    def answer(
        self, prompts: Sequence[list[int]], keys: Tensor, *, sampling: Sampling, endings: Endings
    ) -> Answers:

        def ask(engine: RolloutEngine, place: int) -> Answers:
            return engine.answer(
                [prompts[place]], keys[[place]], sampling=sampling, endings=endings
            )

        return self._spread(ask, *keys.shape)

    def answer_as(
        self,
        version: str,
        prompts: Sequence[list[int]],
        keys: Tensor,
        *,
        sampling: Sampling,
        endings: Endings,
    ) -> Answers:
        def ask(engine: RolloutEngine, place: int) -> Answers:
            return engine.answer_as(
                version, [prompts[place]], keys[[place]], sampling=sampling, endings=endings
            )

        return self._spread(ask, *keys.shape, version=version)

    def _spread(
        self,
        ask: Callable[[RolloutEngine, int], Answers],
        count: int,
        size: int,
        *,
        version: str | None = None,
    ) -> Answers:
        """Answers to `count` groups of `size` rows, each by the next free engine.

        version: the weights to use, handed over again to an engine that lacks them; None: the
        newest."""
        groups = Groups(count)

        def serve(engine: RolloutEngine) -> None:
            renewals = 0
            while engine not in self.faults and (place := groups.take()) is not None:
                try:
                    answers = ask(engine, place)
                except (Forgotten, EngineUnavailable) as error:
                    groups.give_back(place)
                    renewals += 1
                    if not self._try_renew(engine, error, renewals, version):
                        return
                except BaseException:
                    groups.close()
                    raise
                else:
                    groups.finish(place, answers)

        with self._by_load(count * size) as living:
            share = math.ceil(count / len(living))  # at the start; a faster engine takes more
            calls = max(1, min(self.concurrency // size, share))
            workers = living * calls  # in turn
            map_in_threads(len(workers), serve, workers)
        if groups.left:
            raise self._all_gone()
        return concat_answers([groups.answers[place] for place in range(count)])

    def keep(self, versions: int) -> None:
        for engine in self.engines:
            engine.keep(versions)

    @contextmanager
    def _by_load(self, rows: int) -> Iterator[list[RolloutEngine]]:
        """The live engines, the one with the fewest rows first; `rows` are added to its load for
        the duration."""
        with self.counting:
            engines = sorted(self.living, key=self.rows.__getitem__)
            first = engines[:1]
            self.rows.update(first * rows)
        try:
            if not engines:
                raise self._all_gone()
            yield engines
        finally:
            with self.counting:
                self.rows.subtract(first * rows)

    def sync(self, weights: Weights, version: str) -> None:
        """Hand over to every live engine, including those that came back."""
        self._hand_over(weights, version, lambda engine: engine.sync(weights, version))

    def swap(self, weights: Weights, version: str) -> None:
        self._hand_over(weights, version, lambda engine: engine.swap(weights, version))

    def follow(self, weights: Weights, version: str) -> None:
        self._hand_over(weights, version, lambda engine: engine.follow(weights, version))

    def _hand_over(
        self, weights: Weights, version: str, give: Callable[[RolloutEngine], None]
    ) -> None:
        with self.renewing:
            self.newest = weights, version
            # One that is gone stays so until it has these weights: it would get the next group.
            self._each(give, self.engines)

    def is_asleep(self) -> bool:
        return any(self._each(lambda engine: engine.is_asleep(), self.living))

    def sleep(self, *, keep: bool) -> None:
        self._each(lambda engine: engine.sleep(keep=keep), self.living)

    def wake(self, tag: str) -> None:
        self._each(lambda engine: engine.wake(tag), self.living)

    def _each(
        self, ask: Callable[[RolloutEngine], object], engines: Sequence[RolloutEngine]
    ) -> list[object]:
        """Replies of engines, in parallel; one that replies is live. Raises EngineUnavailable if
        none is live."""

        def try_ask(engine: RolloutEngine) -> object:
            try:
                if not engine.is_there():
                    raise EngineUnavailable("it does not respond")
                reply = ask(engine)
            except EngineUnavailable as error:
                self.faults[engine] = str(error)
                return None
            self.faults.pop(engine, None)
            return reply

        found = map_in_threads(len(self.engines), try_ask, engines)
        if not self.living:
            raise self._all_gone()
        return found

    def _try_renew(
        self, engine: RolloutEngine, error: Exception, renewals: int, version: str | None
    ) -> bool:
        """Whether the engine has the weights again and can continue."""
        if isinstance(error, Forgotten) and renewals <= RENEWALS and self.newest is not None:
            try:
                with self.renewing:
                    weights, newest = self.newest
                    engine.renew(weights, version or newest)
                return True
            except EngineUnavailable as fault:
                error = fault
        self.faults[engine] = str(error)
        return False

    def _all_gone(self) -> EngineUnavailable:
        return EngineUnavailable(f"no engine is left: {'; '.join(self.faults.copy().values())}")
