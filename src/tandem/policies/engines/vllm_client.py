"""A running vLLM server as an engine: token ids and weights go to it, rows of tokens come back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from tandem.policies.engines.protocol import (
    Forgotten,
    Handover,
    RolloutEngine,
    Weights,
    follows,
    number_of,
    run_of,
)
from tandem.policies.engines.replies import (
    Completion,
    Generation,
    Question,
    image_fields,
    refuse_pictures,
)
from tandem.policies.engines.reply_rows import Row, Span, stack_rows
from tandem.policies.engines.transfer import Broadcast
from tandem.policies.engines.vllm_api import UNKNOWN, VllmApi, ignore_body, unavailable
from tandem.policies.engines.weight_store import WeightStore
from tandem.policies.language.records import Answers, Endings, Sampling
from tandem.remote import Endpoint, RemoteError, Reply, as_body, as_json, ask_again
from tandem.threads import map_in_threads

SEEDS = 2**63 - 1


class VllmClient(RolloutEngine):
    """The engine of one server. Rows are requested by threads; all other calls are sequential."""

    concurrent: ClassVar[bool] = True
    api_of: type[VllmApi] = VllmApi
    handover_modes: ClassVar[frozenset[Handover]] = frozenset({"pinned", "drain", "in_flight"})

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        probe: Endpoint,
        store: WeightStore,
        model: str | None,
        vocabulary: int,
        concurrency: int,
        broadcasts: bool = False,
    ) -> None:
        """probe: the same server with a deadline of seconds; store: shared by all of a fleet;
        broadcasts: whole weights are sent by vLLM's own transfer, not by files."""
        self.endpoint, self.probe, self.model, self.shelf = endpoint, probe, model, store
        self.api = self.api_of(endpoint)
        self.broadcast = Broadcast(self.api) if broadcasts else None
        self.turn = Broadcast.turn if broadcasts else nullcontext()
        self.vocabulary, self.capacity = vocabulary, concurrency
        self.adapter = False  # whether adapters were handed over
        self.pinned: list[str] = []  # adapters that are named by their version, oldest first
        self.kept = 1  # number of them that stay
        self.newest = "none-0"  # version that was handed over last
        self.tells = False  # whether the server reports the version of its weights
        self.kind: type[Question] | None = None  # None: the server was not asked yet

    @property
    def handovers(self) -> Sequence[Path]:
        return self.shelf.handovers

    def answer(
        self, prompts: Sequence[list[int]], keys: Tensor, *, sampling: Sampling, endings: Endings
    ) -> Answers:
        return self.answer_as(self.newest, prompts, keys, sampling=sampling, endings=endings)

    def answer_as(
        self,
        version: str,
        prompts: Sequence[list[int]],
        keys: Tensor,
        *,
        sampling: Sampling,
        endings: Endings,
    ) -> Answers:
        """Rows that start with a version, and end with it or a later one. keys: [P, G] int64."""
        kind, model = self._kind(), self._model(version)
        if kind is Completion:
            refuse_pictures(prompts)
            self._check_version()
        questions = [
            kind(
                prompt=list(prompt),
                seed=key & SEEDS,
                model=model,
                sampling=sampling,
                ends=endings.tokens,
                vocabulary=self.vocabulary,
                version=version,
                **image_fields(prompt),
            )
            for prompt, row in zip(prompts, keys.tolist(), strict=True)
            for key in row
        ]
        rows = map_in_threads(self.capacity, self._row, questions)
        if kind is Completion:
            self._check_version()
        return stack_rows(rows, keys.device)

    def _model(self, version: str) -> str:
        """The name under which a version is served: adapters that replace one another have the name
        of the run."""
        if self.adapter:
            return version if self.pinned else run_of(version)
        if self.model is None:
            self.model = self.api.models()[0]
        return self.model

    def _kind(self) -> type[Question]:
        """Requests to the token endpoint if there is one, as it reports the weights of a token."""
        if self.kind is None:
            self.kind = Generation if self.api.takes_tokens() else Completion
        return self.kind

    def _row(self, question: Question) -> Row:
        """One row; an invalid reply is requested again."""
        ask = partial(self.endpoint.post, question.path, as_body(question.payload()))
        try:
            return ask_again(partial(ask, read=partial(self._read, question)))
        except RemoteError as error:
            if self._lacks_adapter(error, question):
                raise Forgotten(str(error)) from None
            raise unavailable(error) from None

    def _read(self, question: Question, reply: Reply) -> Row:
        """The row of a reply. A pinned adapter's version is its name, whatever the base weights are
        called. Raises Forgotten unless the weights are those of the question or later ones."""
        row = question.row(as_json(reply))
        if self.pinned:
            return row._replace(spans=[Span(question.model, 0, len(row.tokens))])
        if not self.tells:
            return row._replace(spans=())
        for span in row.spans:
            if not follows(span.version, question.version):
                raise Forgotten(f"the server sampled with {span.version}, not {question.version}")
        return row

    def _lacks_adapter(self, error: RemoteError, question: Question) -> bool:
        """Whether the server lacks the requested adapter."""
        return error.status == UNKNOWN and self.adapter

    def _check_version(self) -> None:
        if self.tells and self.api.weight_version() != self.newest:
            raise Forgotten(f"the server does not hold {self.newest}")

    def keep(self, versions: int) -> None:
        self.kept, self.shelf.kept = versions, max(versions + 1, self.shelf.kept)

    def sync(self, weights: Weights, version: str) -> None:
        """Load adapters under a new name, or whole weights in place of the old."""
        load = self._loading(weights, version)
        if not number_of(self.newest):
            self.api.resume()  # a run that was killed during `swap` has left it paused
        if weights.adapter:
            self.api.load_adapter(version, self.shelf.place(version))
            for old in self._pin(version):
                self.api.unload_adapter(old)
        else:
            with self.turn:
                load()
            self.api.reset_prefix_cache()
            self.tells = self.api.set_weight_version(version)
        self._record_version(weights, version)

    def swap(self, weights: Weights, version: str) -> None:
        """Replace the weights while rows are paused; files are written before the pause."""
        load = self._loading(weights, version)
        with self.turn:
            self.api.pause()
            api = self.api_of(self.probe)  # a server that is gone was waited for
            try:
                load()
                self.tells = self.api.set_weight_version(version)
                api = self.api
            finally:
                api.resume()
        self._record_version(weights, version)

    def _loading(self, weights: Weights, version: str) -> Callable[[], None]:
        """Prepare a handover; the returned function replaces the older weights."""
        if self.broadcast is not None and not weights.adapter:
            met = self.api.weight_version() == self.newest
            return partial(self.broadcast.send, weights, met=met)
        folder = self.shelf.put(weights, version)
        if weights.adapter:
            return partial(self.api.load_adapter, run_of(version), folder, in_place=True)
        return partial(self.api.reload_weights, folder)

    def renew(self, weights: Weights, version: str) -> None:
        """Hand over lost weights; all ranks lose them at once, and later ones find them there."""
        if self._holds(version):
            self.follow(weights, version)
        elif weights.adapter and not self.pinned:
            self.swap(weights, version)
        else:
            self.sync(weights, version)

    def follow(self, weights: Weights, version: str) -> None:
        self.shelf.keep(version)
        if weights.adapter and version in self.api.models():
            self._pin(version)
        else:
            self.tells = self.api.weight_version() is not None
        self._record_version(weights, version)

    def _record_version(self, weights: Weights, version: str) -> None:
        self.adapter = weights.adapter
        self.newest = max(self.newest, version, key=number_of)

    def _pin(self, version: str) -> list[str]:
        """Add a named adapter, and return the names that are no longer kept."""
        self.pinned = sorted({*self.pinned, version}, key=number_of)
        old, self.pinned = self.pinned[: -self.kept], self.pinned[-self.kept :]
        return old

    def _holds(self, version: str) -> bool:
        if self.pinned:
            return version in self.api.models()
        named = not self.adapter or run_of(version) in self.api.models()
        return named and self.api.weight_version() == version

    def is_there(self) -> bool:
        try:
            self.probe.get("/health", read=ignore_body)
        except RemoteError:
            return False
        return True

    def is_asleep(self) -> bool:
        return self.api.is_sleeping()

    def sleep(self, *, keep: bool) -> None:
        self.api.sleep(level=1 if keep else 2)

    def wake(self, tag: str) -> None:
        self.api.wake(tag)
