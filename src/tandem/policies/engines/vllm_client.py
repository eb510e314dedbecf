"""A running vLLM server as an engine: token ids and weights go to it, rows of tokens come back."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch import Tensor

from tandem.policies.engines.protocol import Forgotten, RolloutEngine, Weights
from tandem.policies.engines.replies import (
    Completion,
    Generation,
    Question,
    Row,
    Span,
    stack_rows,
)
from tandem.policies.engines.vllm_api import UNKNOWN, VllmApi, as_body, ignored, unavailable
from tandem.policies.engines.weight_store import WeightStore
from tandem.policies.language.records import Answers, Endings, Sampling
from tandem.remote import BadReply, Endpoint, Rejected, RemoteError, Reply, as_json
from tandem.stop import EngineUnavailable

AGAIN = 3  # attempts at a row whose reply is none
SEEDS = 2**63 - 1


class VllmClient(RolloutEngine):
    """Threads ask for rows; everything else comes one by one."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        probe: Endpoint,
        store: WeightStore,
        model: str | None,
        vocabulary: int,
        concurrency: int,
    ) -> None:
        """probe: the same place, with an end after seconds; store: shared by all of a fleet."""
        self.endpoint, self.probe, self.model, self.shelf = endpoint, probe, model, store
        self.api = VllmApi(endpoint)
        self.vocabulary, self.concurrency = vocabulary, concurrency
        self.adapter = False  # whether adapters were handed over, of which a name tells the version
        self.version: str | None = None  # of the whole weights; None: the server cannot tell
        self.given: list[str] = []  # versions that were handed over, oldest first
        self.kind: type[Question] | None = None  # None: the server was not asked yet

    @property
    def handovers(self) -> Sequence[Path]:
        return self.shelf.handovers

    def answer(
        self, prompts: Sequence[list[int]], keys: Tensor, *, sampling: Sampling, endings: Endings
    ) -> Answers:
        kind, newest = self._kind(), self.given[-1:]
        if kind is Completion:
            self._check_version()
        model = self.model or self._first_model()
        questions = [
            kind(
                prompt=list(prompt),
                seed=key & SEEDS,
                model=model,
                sampling=sampling,
                ends=endings.tokens,
                vocabulary=self.vocabulary,
            )
            for prompt, row in zip(prompts, keys.tolist(), strict=True)
            for key in row
        ]
        with ThreadPoolExecutor(min(self.concurrency, len(questions))) as pool:
            rows = list(pool.map(self._row, questions))
        if kind is Completion:
            self._check_version()
        self._check_spans(rows, newest)
        return stack_rows(rows, keys.device)

    def _kind(self) -> type[Question]:
        """By the token endpoint where there is one: it says which weights took which token."""
        if self.kind is None:
            self.kind = Generation if self.api.takes_tokens() else Completion
        return self.kind

    def _row(self, question: Question) -> Row:
        """One row; what comes instead of it is asked for again."""
        body = as_body(question.payload())

        def read(reply: Reply) -> Row:
            row = question.row(as_json(reply))
            return row._replace(spans=self._spans(question, row))

        for left in reversed(range(AGAIN)):
            try:
                return self.endpoint.post(question.path, body, read=read)
            except BadReply as error:
                if not left:
                    raise unavailable(error) from None
            except Rejected as error:
                if error.status == UNKNOWN and self.adapter:
                    raise Forgotten(str(error)) from None
                raise unavailable(error) from None
            except RemoteError as error:
                raise unavailable(error) from None
        raise AssertionError("an attempt answers or raises")

    def _spans(self, question: Question, row: Row) -> Sequence[Span]:
        """An adapter's name is its version, whatever the weights beneath are called; of weights
        that have no name of ours nothing is said."""
        if self.adapter:
            return [Span(question.model, 0, len(row.tokens))]
        return row.spans if self.version is not None else ()

    def _check_spans(self, rows: Sequence[Row], newest: Sequence[str]) -> None:
        """Raise Forgotten unless all are of what was the newest as they were asked for, or of what
        was handed over since."""
        known = self.given[self.given.index(newest[0]) :] if newest else self.given
        strange = {span.version for row in rows for span in row.spans} - set(known)
        if strange:
            raise Forgotten(f"the server sampled by {min(strange)}, and should by {known[-1:]}")

    def _check_version(self) -> None:
        if self.version is not None and self.api.weight_version() != self.version:
            raise Forgotten(f"the server does not hold {self.version}")

    def _first_model(self) -> str:
        self.model = self.api.models()[0]
        return self.model

    # Weights.

    def sync(self, weights: Weights, version: str) -> None:
        """Through files: adapters under a new name, or the whole weights in place of the old."""
        self.adapter, before = weights.adapter, [path.name for path in self.handovers]
        folder = self.shelf.put(weights, version)
        if weights.adapter:
            self._load_adapter(version, folder, before)
        else:
            self._load_whole(version, folder)
        self._remember(version)

    def renew(self, weights: Weights, version: str) -> None:
        """Ranks miss them at once: whoever comes second finds them there."""
        if self._holds(version):
            self.follow(weights, version)
        else:
            self.sync(weights, version)

    def follow(self, weights: Weights, version: str) -> None:
        self.adapter = weights.adapter
        self.shelf.keep(version)
        if weights.adapter:
            self.model = version
        else:
            self.version = None if self.api.weight_version() is None else version
        self._remember(version)

    def _remember(self, version: str) -> None:
        if version not in self.given:
            self.given.append(version)

    def _holds(self, version: str) -> bool:
        if self.adapter:
            return version in self.api.models()
        return self.api.weight_version() == version

    def _load_adapter(self, version: str, folder: Path, ours: Sequence[str]) -> None:
        self.api.load_adapter(version, folder)
        before, self.model = self.model, version
        if before in ours and before != version:  # the base is not ours
            self.api.unload_adapter(before)

    def _load_whole(self, version: str, folder: Path) -> None:
        self.api.reload_weights(folder)
        # What was computed of earlier prompts belongs to the weights before. Another rank may have
        # handed over the same, and be asking already.
        if not self.api.reset_prefix_cache() and self.api.weight_version() != version:
            raise EngineUnavailable(
                f"{self.endpoint.url}: the server kept its prefix cache of older weights"
            )
        self.version = version if self.api.set_weight_version(version) else None

    # Presence and memory.

    def is_there(self) -> bool:
        try:
            self.probe.get("/health", read=ignored)
        except RemoteError:
            return False
        return True

    def is_asleep(self) -> bool:
        return self.api.is_sleeping()

    def sleep(self, *, keep: bool) -> None:
        self.api.sleep(level=1 if keep else 2)

    def wake(self, tag: str) -> None:
        self.api.wake(tag)
