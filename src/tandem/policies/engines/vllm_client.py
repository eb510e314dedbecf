"""A running vLLM server as an engine: token ids and weights go to it, rows of tokens come back.

Endpoints and payloads are those of vLLM 0.31 to 0.33; docs/engines.md lists them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch import Tensor

from tandem.policies.engines.protocol import Forgotten, RolloutEngine, Weights
from tandem.policies.engines.replies import Question, Row, stack_rows
from tandem.policies.engines.weight_store import WeightStore
from tandem.policies.language.records import Answers, Endings, Sampling
from tandem.remote import BadReply, Endpoint, Rejected, RemoteError, Reply, as_json
from tandem.stop import EngineUnavailable

AGAIN = 3  # attempts at a row whose reply is none
SEEDS = 2**63 - 1
UNKNOWN = 404


def ignored(reply: Reply) -> None:
    """Of endpoints that answer with a status alone."""


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
        self.vocabulary, self.concurrency = vocabulary, concurrency
        self.adapter = False  # whether adapters were handed over, of which a name tells the version
        self.version: str | None = None  # of the whole weights; None: the server cannot tell

    @property
    def handovers(self) -> Sequence[Path]:
        return self.shelf.handovers

    def answer(
        self, prompts: Sequence[list[int]], keys: Tensor, *, sampling: Sampling, endings: Endings
    ) -> Answers:
        self._check_version()
        model = self.model or self._first_model()
        questions = [
            Question(
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
        self._check_version()
        return stack_rows(rows, keys.device)

    def _row(self, question: Question) -> Row:
        """One row; what comes instead of it is asked for again."""
        body = as_body(question.payload())

        def read(reply: Reply) -> Row:
            return question.row(as_json(reply))

        for left in reversed(range(AGAIN)):
            try:
                return self.endpoint.post("/v1/completions", body, read=read)
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

    def _check_version(self) -> None:
        if self.version is not None and self._reported_version() != self.version:
            raise Forgotten(f"the server does not hold {self.version}")

    def _reported_version(self) -> str | None:
        """Since vLLM 0.31 or so; None: this one has no such endpoint."""
        said = self._ask("GET", "/weight_info", optional=True)
        return None if said is None else str(said.get("weight_version"))

    def _first_model(self) -> str:
        self.model = self._names()[0]
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
            self.version = None if self._reported_version() is None else version

    def _holds(self, version: str) -> bool:
        return version in self._names() if self.adapter else self._reported_version() == version

    def _load_adapter(self, version: str, folder: Path, ours: Sequence[str]) -> None:
        loaded = {"lora_name": version, "lora_path": str(folder.resolve())}
        try:
            self._post("/v1/load_lora_adapter", loaded)
        except RemoteError as error:
            # Of an attempt whose answer was lost, the adapter is there.
            if version not in self._names():
                raise unavailable(error, "start the server with --enable-lora") from None
        before, self.model = self.model, version
        if before in ours and before != version:  # the base is not ours
            self._ask("POST", "/v1/unload_lora_adapter", {"lora_name": before}, optional=True)

    def _load_whole(self, version: str, folder: Path) -> None:
        files = {"weights_path": str(folder.resolve())}
        self._ask("POST", "/collective_rpc", {"method": "reload_weights", "kwargs": files})
        # What was computed of earlier prompts belongs to the weights before.
        said = self._ask("POST", "/reset_prefix_cache", {})
        # Another rank may have handed over the same, and be asking already.
        if said.get("success") is False and self._reported_version() != version:
            raise EngineUnavailable(
                f"{self.endpoint.url}: the server kept its prefix cache of older weights"
            )
        named = self._ask("POST", "/update_weight_version", {"new_version": version}, optional=True)
        self.version = None if named is None else version

    def _names(self) -> list[str]:
        """Under which weights are served, the base first."""
        try:
            return self.endpoint.get("/v1/models", read=names)
        except RemoteError as error:
            raise unavailable(error) from None

    # Presence and memory.

    def is_there(self) -> bool:
        try:
            self.probe.get("/health", read=ignored)
        except RemoteError:
            return False
        return True

    def is_asleep(self) -> bool:
        """A server that cannot sleep is awake."""
        said = self._ask("GET", "/is_sleeping", optional=True)
        return said is not None and said.get("is_sleeping") is True

    def sleep(self, *, keep: bool) -> None:
        self._ask("POST", f"/sleep?level={1 if keep else 2}", {})

    def wake(self, tag: str) -> None:
        self._ask("POST", f"/wake_up?tags={tag}", {})

    # Exchanges.

    def _ask(
        self, method: str, path: str, payload: object = None, *, optional: bool = False
    ) -> dict | None:
        """The object that comes back, empty if nothing does; None: there is no such endpoint, and
        it was optional. Raises EngineUnavailable."""
        try:
            if method == "GET":
                return self.endpoint.get(path, read=as_mapping)
            return self._post(path, payload)
        except Rejected as error:
            if optional and error.status == UNKNOWN:
                return None
            hint = "start the server with VLLM_SERVER_DEV_MODE=1" if error.status == UNKNOWN else ""
            raise unavailable(error, hint) from None
        except RemoteError as error:
            raise unavailable(error) from None

    def _post(self, path: str, payload: object) -> dict:
        return self.endpoint.post(path, as_body(payload), read=said_if_any)


def as_body(payload: object) -> bytes:
    return json.dumps(payload).encode()


def as_mapping(reply: Reply) -> dict:
    """The JSON object of a reply. Raises ValueError for any other."""
    said = as_json(reply)
    if not isinstance(said, dict):
        raise ValueError("what came is no JSON object")
    return said


def said_if_any(reply: Reply) -> dict:
    """What was done may be told with nothing, or with a sentence; the status counts."""
    try:
        return as_mapping(reply)
    except ValueError:
        return {}


def names(reply: Reply) -> list[str]:
    """Of the models on a list of vLLM's, of which there is at least one.

    Raises ValueError for any other reply.
    """
    data = as_mapping(reply).get("data")
    found = [card.get("id") for card in data or () if isinstance(card, dict)]
    if not found or not all(isinstance(name, str) for name in found):
        raise ValueError("what came is no list of models")
    return found


def unavailable(error: RemoteError, hint: str = "") -> EngineUnavailable:
    return EngineUnavailable(f"the engine gave no answer: {error}" + (f"; {hint}" if hint else ""))
