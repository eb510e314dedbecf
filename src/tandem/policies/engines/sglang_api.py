"""The HTTP endpoints of SGLang 0.5.23 as calls, and its rows: written from its source, not run."""

from __future__ import annotations

from pathlib import Path

from tandem.policies.engines.replies import Question, logp_of, part
from tandem.policies.engines.reply_rows import Row, Span
from tandem.policies.engines.vllm_api import VllmApi
from tandem.remote import Rejected, RemoteError
from tandem.stop import EngineUnavailable

REFUSED = 400  # also the status for an adapter that is not loaded
ALL, NO_LIMIT = ("weights", "kv_cache"), -1


class SglangRow(Question):
    """The /generate endpoint: token ids in and out, with the weight version at its end."""

    __slots__ = ()
    path = "/generate"

    def payload(self) -> dict[str, object]:
        numbers = self._numbers()
        for name in ("seed", "logprobs", "max_tokens"):
            del numbers[name]
        numbers["top_k"] = self.sampling.top_k or NO_LIMIT
        own = {"max_new_tokens": self.sampling.max_new_tokens, "sampling_seed": self.seed}
        adapter = self.model if self.model == self.version else None  # pinned under its version
        return {
            "input_ids": self.prompt,
            "sampling_params": numbers | own | {"no_stop_trim": True},
            "return_logprob": True,
            "logprob_start_len": -1,  # of the answer alone
            "lora_path": adapter,
            "cache_salt": self.version,
            "stream": False,
        }

    def row(self, reply: object) -> Row:
        """The row in a reply. Raises ValueError for an invalid reply."""
        meta = part(reply, "meta_info", dict)
        tokens = self._tokens(part(reply, "output_ids", list))
        said = part(meta, "output_token_logprobs", list)
        if [each[1] for each in said] != tokens:
            raise ValueError("its log-probabilities are not those of its tokens")
        logp = logp_of([each[0] for each in said], len(tokens))
        reason = {"finish_reason": part(part(meta, "finish_reason", dict), "type", str)}
        spans = [Span(part(meta, "weight_version", str), 0, len(tokens))]
        return Row(tokens, logp, self._is_truncated(reason, tokens), spans)


class SglangApi(VllmApi):
    """SGLang's endpoints behind the interface of `VllmApi`."""

    def takes_tokens(self) -> bool:
        return True

    def weight_version(self) -> str | None:
        said = self._get("/model_info")
        return None if said is None else str(said.get("weight_version"))

    def is_sleeping(self) -> bool:
        """False: SGLang does not report it."""
        return False

    def load_adapter(self, name: str, folder: Path, *, in_place: bool = False) -> None:
        loaded = {"lora_name": name, "lora_path": str(folder.resolve())}
        try:
            self._send("/load_lora_adapter", loaded)
        except RemoteError as error:
            # An attempt whose reply was lost did load the adapter.
            if name not in self.models():
                hint = "start the server with --enable-lora --max-lora-rank and target modules"
                raise EngineUnavailable(
                    f"the engine did not load the adapter: {error}; {hint}"
                ) from None

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter, if it is loaded."""
        try:
            self._send("/unload_lora_adapter", {"lora_name": name})
        except Rejected as error:
            if error.status != REFUSED:
                raise EngineUnavailable(f"the engine gave no answer: {error}") from None

    def reload_weights(self, folder: Path) -> None:
        """Read all weights from files, and empty the cache of prompts."""
        files = {"model_path": str(folder.resolve()), "flush_cache": True}
        self._post("/update_weights_from_disk", files)

    def reset_prefix_cache(self) -> None:
        """Nothing: `reload_weights` has done it."""

    def set_weight_version(self, version: str) -> bool:
        named = {"new_version": version, "abort_all_requests": False}
        return self._post("/update_weight_version", named, optional=True) is not None

    def sleep(self, *, level: int) -> None:
        """Free the memory of the cache, and above level 1 also of the weights."""
        self._post("/release_memory_occupation", {"tags": ALL if level > 1 else ALL[1:]})

    def wake(self, tag: str) -> None:
        self._post("/resume_memory_occupation", {"tags": [tag]})
