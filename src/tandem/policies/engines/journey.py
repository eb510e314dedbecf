"""Background handover of weights, and the rows in flight that it may have to wait for."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tandem import distributed
from tandem.stop import EngineUnavailable
from tandem.threads import GRACE, call_in_thread, wait_until_done

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Journey:
    """A background handover: at most one at a time; `end` raises its error."""

    def __init__(self) -> None:
        self.group: ProcessGroup | None = None  # of the threads of all ranks
        self.renewing = threading.Lock()  # an engine that lost its weights gets them only once
        self._changed = threading.Condition()
        self._rows, self._closed = 0, False
        self._travelling: Future[None] | None = None
        self._fault: BaseException | None = None  # of the last handover that was waited for
        # A server may be paused for it, and its files are deleted at the end of the process.
        atexit.register(self._let_end)

    def begin(self, travel: Callable[[], None]) -> None:
        """Start the handover in a thread."""
        self._travelling = call_in_thread(travel)

    def end(self) -> None:
        """Wait until it ends. Raises its error, or Abandoned where the run ends before."""
        if (travelling := self._travelling) is None:
            return
        wait_until_done(travelling)
        self._travelling = None
        self._fault = travelling.exception()
        travelling.result()

    def _let_end(self) -> None:
        if self._travelling is not None:
            wait([self._travelling], GRACE)

    def check(self) -> None:
        """Raise the error of the last handover, if it has ended."""
        if self.is_over:
            self.end()
        if self._fault is not None:
            raise self._fault

    @property
    def is_over(self) -> bool:
        """Whether no handover is running."""
        return self._travelling is None or self._travelling.done()

    @contextmanager
    def rows(self, may: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """A context in which rows are in flight. It begins once no handover waits for rows to end,
        and once `may` accepts the weights that have arrived."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closed and may())
            self._rows += 1
        try:
            yield
        finally:
            with self._changed:
                self._rows -= 1
                self._changed.notify_all()

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """A context in which weights arrive; waiting rows are notified at its end."""
        with self._changed:
            yield
            self._changed.notify_all()

    def close(self) -> None:
        """Start no row until `drain` ends."""
        with self._changed:
            self._closed = True

    @contextmanager
    def drain(self) -> Iterator[None]:
        """A context in which no row of this rank is in flight."""
        with self._changed:
            self._changed.wait_for(lambda: not self._rows)
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()

    def meet(self, fault: str) -> None:
        """Synchronise the threads of all ranks. Raises EngineUnavailable for a fault on any."""
        faults = [said for said in distributed.all_gather_object([fault], self.group) if said]
        if faults:
            raise EngineUnavailable(faults[0])
