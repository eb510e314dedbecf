"""SGLang servers that sample for a run; written from SGLang's source, not run against a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tandem.policies.engines.protocol import Handover
from tandem.policies.engines.replies import Question
from tandem.policies.engines.serving import Command, Served
from tandem.policies.engines.sglang_api import REFUSED, SglangApi, SglangRow
from tandem.policies.engines.vllm_checks import WHERE, check_room
from tandem.policies.engines.vllm_client import VllmClient
from tandem.policies.engines.vllm_server import VllmServer
from tandem.policies.language.records import Sampling
from tandem.policies.lora import Lora
from tandem.remote import Endpoint, RemoteError


class SglangClient(VllmClient):
    """The client of vLLM, with the endpoints and the rows of SGLang."""

    api_of = SglangApi
    handover_modes: ClassVar[frozenset[Handover]] = frozenset({"pinned", "drain"})

    def _kind(self) -> type[Question]:
        return SglangRow

    def wake(self, tag: str) -> None:
        if tag == "kv_cache" or not self.adapter:  # the base weights of adapters stayed
            super().wake(tag)

    def _lacks_adapter(self, error: RemoteError, question: Question) -> bool:
        """Whether a restarted server refused an adapter that it no longer has."""
        wanted = self.adapter and error.status == REFUSED
        return wanted and question.model not in self.api.models()


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangServer(VllmServer):
    """Servers of SGLang, started beside the run; docs/engines.md says how."""

    client: ClassVar[type[VllmClient]] = SglangClient
    handover_modes: ClassVar[frozenset[Handover]] = SglangClient.handover_modes
    program = "sglang"
    sees: ClassVar[bool] = False

    def command(self, served: Served, sampling: Sampling, lora: Lora | None) -> Command:
        raise ValueError(
            "rollout=sglang_server: start its servers by hand; docs/engines.md has the command"
        )

    def _check(self, url: str, sampling: Sampling, lora: Lora | None) -> None:
        card, config = self._query_server(url, server_info)
        check_room(card, sampling)
        if self.transfer != "files":
            raise ValueError(
                f"{WHERE}.transfer={self.transfer} is for vLLM only; set {WHERE}.transfer=files"
            )
        check_server(config, lora, sleeps=self.sleeps)


def server_info(endpoint: Endpoint) -> Mapping[str, object]:
    """The server's own options."""
    said = endpoint.get("/server_info")
    return said if isinstance(said, dict) else {}


def check_server(config: Mapping[str, object], lora: Lora | None, *, sleeps: bool) -> None:
    """Raise ValueError for a missing option; options that the server does not report pass."""
    if sleeps and config.get("enable_memory_saver") is False:
        raise ValueError(
            f"{WHERE}.sleeps=true: the server keeps its memory; start it with --enable-memory-saver"
        )
    if lora is None:
        return
    most = config.get("max_lora_rank")
    if config.get("enable_lora") is False or (isinstance(most, int) and most < lora.r):
        raise ValueError(
            f"model.lora.r={lora.r}: the server has no room for it; start it with --enable-lora "
            f"--max-lora-rank {lora.r} --lora-target-modules all"
        )
