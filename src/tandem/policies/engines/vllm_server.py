"""Settings of vLLM servers that sample for a run, known before a model is loaded."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from tandem.contracts import positive
from tandem.contracts.bounds import values_of
from tandem.policies.engines.addresses import AUTO, find_urls
from tandem.policies.engines.fleet import Fleet
from tandem.policies.engines.protocol import Handover, Hostable, RolloutEngine
from tandem.policies.engines.serving import Command, Served, ServerOption
from tandem.policies.engines.vllm_api import VllmApi, configuration, ignore_body
from tandem.policies.engines.vllm_checks import (
    WHERE,
    check_adapters,
    check_episodes,
    check_options,
    check_room,
    check_transfer,
    model_card,
)
from tandem.policies.engines.vllm_client import VllmClient
from tandem.policies.engines.vllm_command import serve
from tandem.policies.engines.weight_store import WeightStore
from tandem.policies.language.records import Sampling
from tandem.policies.lora import Lora
from tandem.processes import is_private
from tandem.remote import Endpoint, Limits, Rejected, RemoteError, patient_endpoint
from tandem.remote.transport import LOOPBACK

log = logging.getLogger(__name__)

FORBIDDEN = (401, 403)
SOON, FIRST_INFO = 5.0, 120.0  # seconds; the first /server_info queries pip, gcc and the drivers
MEMORY = Path("/dev/shm")  # where Linux keeps files in memory
# One of several engines is given up after patience / FLEET, but not before one attempt has ended.
FLEET = 4

Config = Mapping[str, object] | None  # of a server; None: it does not report it


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmServer(ServerOption):
    """Servers of vLLM 0.31 or later, started beside the run; docs/engines.md says how."""

    program = "vllm"
    sees: ClassVar[bool] = True
    client: ClassVar[type[VllmClient]] = VllmClient
    handover_modes: ClassVar[frozenset[Handover]] = VllmClient.handover_modes

    # Addresses such as http://127.0.0.1:8000; auto: those of `tandem engines`.
    url: str | Sequence[str]
    folder: str  # folder of addresses and weights; servers see it under the same path
    # How whole weights are passed: as files, or by vLLM's broadcast.
    transfer: Literal["files", "broadcast"] = "files"
    in_memory: bool = False  # pass weights through /dev/shm, if servers are local and it has room
    api_key_env: str | None = None  # name of the environment variable with the server's --api-key
    model: str | None = None  # name that the weights are served under; None: the server's first
    # Rows in flight at each server: about what an H100 holds of an 8B model.
    concurrency: Annotated[int, positive] = 256
    timeout: Annotated[float, positive] = 300.0  # seconds of one attempt at a row, or at a handover
    # Seconds that a server may be away; one of several: a quarter of it, or `timeout` if longer.
    patience: Annotated[float, positive] = 900.0
    max_reply_bytes: Annotated[int, positive] = 2**24
    sleeps: bool = False  # the server frees its memory while the policy is trained
    starts: bool = False  # the run starts the servers itself, one on each of its GPUs
    # Share of each GPU's memory for a server that Tandem starts.
    memory: Annotated[float, positive] = 0.9

    def __post_init__(self) -> None:
        if self.url == AUTO:
            return
        if self.starts:
            raise ValueError(f"{WHERE}.starts=true: the run starts its servers; leave url=auto")
        if not self.urls:
            raise ValueError(f"{WHERE}.url=[]: give the address of at least one server")
        try:
            for url in self.urls:
                self.endpoint(url)
        except ValueError as error:
            raise ValueError(f"{WHERE}.{error}") from None

    @property
    def urls(self) -> Sequence[str]:
        """Addresses of the servers; with url=auto, waits for `tandem engines` to write them."""
        if self.url == AUTO:
            return find_urls(self.writes_to, patience=self.patience, own=self.starts)
        return tuple(values_of(self.url))

    def command(self, served: Served, sampling: Sampling, lora: Lora | None) -> Command:
        """The command by which `tandem engines` starts a server; vLLM 0.32 or later."""
        return serve(self, served, sampling, lora)

    def endpoint(self, url: str, *, patience: float | None = None) -> Endpoint:
        """The endpoint of one server; patience: seconds, in place of the setting."""
        patience = self.patience if patience is None else patience
        keys = {x: f"{WHERE}.{x}" for x in ("timeout", "max_reply_bytes")}
        return patient_endpoint(
            url,
            where=WHERE,
            keys=keys | {"deadline": f"{WHERE}.patience", "connect": f"{WHERE}.url"},
            token_env=self.api_key_env,
            limits=Limits(
                timeout=self.timeout, deadline=patience, max_reply_bytes=self.max_reply_bytes
            ),
        )

    def check(self, sampling: Sampling, lora: Lora | None) -> None:
        """Check that each server responds and supports these settings, in seconds or as long as its
        first /server_info takes. Raises ValueError.
        """
        if self.api_key_env is not None and not os.environ.get(self.api_key_env, "").strip():
            raise ValueError(
                f"{WHERE}.api_key_env={self.api_key_env}: this environment variable is "
                "empty; put the server's --api-key there, or set the key to null"
            )
        urls = self.urls
        for url in urls:
            self._check(url, sampling, lora)
            if len(urls) > 1 and lora is None:
                self._check_version(url)

    def check_episodes(self, tokens: int) -> None:
        for url in self.urls:
            models = self.endpoint(url, patience=min(self.patience, SOON)).get("/v1/models")
            check_episodes(model_card(models, self.model), tokens)

    def _query_server(self, url: str, info: Callable[[Endpoint], Config]) -> tuple[Mapping, Config]:
        """The card of the model, and the options that the server reports. Raises ValueError."""
        endpoint = self.endpoint(url, patience=min(self.patience, SOON))
        try:
            endpoint.get("/health", read=ignore_body)
            card = model_card(endpoint.get("/v1/models"), self.model)
            return card, info(self.endpoint(url, patience=min(self.patience, FIRST_INFO)))
        except Rejected as error:
            if error.status not in FORBIDDEN:
                raise ValueError(f"the engine does not answer: {error}") from None
            raise ValueError(
                f"the engine rejects the key of {WHERE}.api_key_env={self.api_key_env}: name the "
                "environment variable that holds the server's --api-key"
            ) from None
        except RemoteError as error:
            raise ValueError(f"the engine does not answer: {error}") from None

    def _check(self, url: str, sampling: Sampling, lora: Lora | None) -> None:
        card, config = self._query_server(url, configuration)
        check_room(card, sampling)
        self._check_handover(url, sampling, lora)
        if self.transfer == "broadcast":
            check_transfer(config, lora)
        if config is not None:
            check_options(config, sleeps=self.sleeps)
            check_adapters(config, lora, sampling)
        elif lora is None or self.sleeps or sampling.handover == "in_flight":
            raise ValueError(
                f"{WHERE}.url={url}: the server cannot load weights or sleep; start it with "
                "VLLM_SERVER_DEV_MODE=1, or train only adapters (model.lora) without "
                "rollout.engine.sleeps"
            )

    def _check_handover(self, url: str, sampling: Sampling, lora: Lora | None) -> None:
        """Raise ValueError if a run needs the version of each token and the server gives none."""
        if sampling.handover_of(adapter=lora is not None) != "in_flight":
            return
        if not VllmApi(self.endpoint(url, patience=min(self.patience, SOON))).takes_tokens():
            raise ValueError(
                f"rollout.handover=in_flight: the server at {url} does not report which weights "
                "sampled a token; start it with --enable-scale-out (vLLM 0.32 or later), or set "
                "rollout.handover=drain"
            )

    def _check_version(self, url: str) -> None:
        """Raise ValueError if a server of several does not report the version of its weights: after
        a restart, or a handover that failed, its rows would be of other weights unnoticed."""
        api = self.client.api_of(self.endpoint(url, patience=min(self.patience, SOON)))
        if api.weight_version() is None:
            raise ValueError(
                f"{WHERE}.url: of several servers, each must report the version of its weights, "
                f"and {url} does not; start it with vLLM 0.31 or later, or leave its address out"
            )

    def _store(self, urls: Sequence[str]) -> WeightStore:
        here = {urlsplit(url).hostname for url in urls} <= {*LOOPBACK, socket.gethostname()}
        in_memory = self.in_memory and here and MEMORY.is_dir()
        memory = MEMORY / f"tandem-{os.getuid()}" if in_memory else None
        if memory is not None and not is_private(memory):
            log.warning(
                "%s is not private to you (chmod 700): weights go through %s",
                memory,
                self.folder,
            )
            memory = None
        return WeightStore(self.writes_to, memory=memory)

    def host(self, policy: Hostable) -> RolloutEngine:
        urls = self.urls
        store = self._store(urls)
        patience = self.patience
        if len(urls) > 1:
            patience = min(patience, max(patience / FLEET, self.timeout))
        clients = [
            self.client(
                self.endpoint(url, patience=patience),
                probe=self.endpoint(url, patience=min(patience, SOON)),
                store=store,
                model=self.model,
                vocabulary=policy.vocabulary,
                concurrency=self.concurrency,
                broadcasts=self.transfer == "broadcast",
            )
            for url in urls
        ]
        return clients[0] if len(clients) == 1 else Fleet(clients, concurrency=self.concurrency)
