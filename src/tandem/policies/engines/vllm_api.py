"""The HTTP endpoints of vLLM 0.31 to 0.33 as calls; docs/engines.md lists them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tandem.policies.engines.replies import Generation
from tandem.remote import Endpoint, Rejected, RemoteError, Reply, as_body, as_json
from tandem.stop import EngineUnavailable

UNKNOWN = 404
NO_TOKENS = (403, 404, 405)  # of a token endpoint that is switched off, or that is none
INVALID = (400, 422)  # of one that is there, to a request of nothing
ADAPTERS, DEVELOPMENT = (
    "start the server with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True",
    "start the server with VLLM_SERVER_DEV_MODE=1",
)


def ignored(reply: Reply) -> None:
    """Ignore the body of an endpoint that only returns a status."""


class VllmApi:
    """Every call raises EngineUnavailable where the server gives no answer."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    # What it has.

    def takes_tokens(self) -> bool:
        """Whether rows can be asked for by the token endpoint."""
        try:
            self.endpoint.post(Generation.path, b"{}", read=ignored)
        except Rejected as error:
            if error.status in INVALID + NO_TOKENS:
                return error.status in INVALID
            raise unavailable(error) from None
        except RemoteError as error:
            raise unavailable(error) from None
        return True

    def models(self) -> list[str]:
        """Under which names weights are served, the base first."""
        try:
            return self.endpoint.get("/v1/models", read=names)
        except RemoteError as error:
            raise unavailable(error) from None

    def weight_version(self) -> str | None:
        """Since vLLM 0.31 or so; None: this one has no such endpoint."""
        said = self._get("/weight_info")
        return None if said is None else str(said.get("weight_version"))

    def is_sleeping(self) -> bool:
        """A server that cannot sleep is awake."""
        said = self._get("/is_sleeping")
        return said is not None and said.get("is_sleeping") is True

    # Weights.

    def load_adapter(self, name: str, folder: Path, *, in_place: bool = False) -> None:
        """in_place: the name may be that of another one, whose place it takes."""
        loaded = {"lora_name": name, "lora_path": str(folder.resolve()), "load_inplace": in_place}
        try:
            self._send("/v1/load_lora_adapter", loaded)
        except RemoteError as error:
            # Of an attempt whose answer was lost, the adapter is there.
            if in_place or name not in self.models():
                raise unavailable(error, ADAPTERS) from None

    def unload_adapter(self, name: str) -> None:
        """Nothing happens if it is not there."""
        self._post("/v1/unload_lora_adapter", {"lora_name": name}, optional=True)

    def reload_weights(self, folder: Path) -> None:
        """All weights are read from files."""
        files = {"weights_path": str(folder.resolve())}
        self._post("/collective_rpc", {"method": "reload_weights", "kwargs": files})

    def transfer_backend(self) -> str | None:
        """The backend of vLLM's weight transfer; None if the server was started without."""
        config = configuration(self.endpoint) or {}
        transfer = config.get("weight_transfer_config")
        return transfer.get("backend") if isinstance(transfer, dict) else None

    def world_size(self) -> int:
        """The number of workers in a transfer."""
        return int((self._get("/get_world_size") or {"world_size": 1})["world_size"])

    def init_weight_transfer(self, meeting: Mapping[str, object]) -> None:
        """Returns once both ends have met."""
        self._once("/init_weight_transfer_engine", {"init_info": meeting})

    def start_weight_update(self) -> None:
        self._once("/start_weight_update", {})

    def update_weights(self, description: Mapping[str, object]) -> None:
        """Returns once all that was described has come."""
        self._once("/update_weights", {"update_info": description})

    def finish_weight_update(self) -> None:
        self._once("/finish_weight_update", {})

    def reset_prefix_cache(self) -> None:
        """Free what was computed of prompts, unless rows are under way."""
        self._post("/reset_prefix_cache", {})

    def pause(self) -> None:
        """Rows under way stand still and stay in memory, and new ones wait."""
        self._post("/pause?mode=keep", {})

    def resume(self) -> None:
        self._post("/resume", {})

    def set_weight_version(self, version: str) -> bool:
        """Whether there is such an endpoint."""
        named = {"new_version": version}
        return self._post("/update_weight_version", named, optional=True) is not None

    # Memory.

    def sleep(self, *, level: int) -> None:
        self._post(f"/sleep?level={level}", {})

    def wake(self, tag: str) -> None:
        self._post(f"/wake_up?tags={tag}", {})

    # Exchanges.

    def _get(self, path: str) -> dict | None:
        """None: there is no such endpoint."""
        try:
            return self.endpoint.get(path, read=as_mapping)
        except Rejected as error:
            if error.status == UNKNOWN:
                return None
            raise unavailable(error) from None
        except RemoteError as error:
            raise unavailable(error) from None

    def _post(self, path: str, payload: object, *, optional: bool = False) -> dict | None:
        """The reply, {} if it is empty; None if the endpoint is optional and absent."""
        try:
            return self._send(path, payload)
        except Rejected as error:
            if optional and error.status == UNKNOWN:
                return None
            raise unavailable(error, DEVELOPMENT if error.status == UNKNOWN else "") from None
        except RemoteError as error:
            raise unavailable(error) from None

    def _once(self, path: str, payload: object) -> None:
        """A step of a transfer: the other end takes it once."""
        try:
            self.endpoint.post(path, as_body(payload), read=said_if_any, repeatable=False)
        except RemoteError as error:
            raise unavailable(error, "see the log of the server") from None

    def _send(self, path: str, payload: object) -> dict:
        return self.endpoint.post(path, as_body(payload), read=said_if_any)


def configuration(endpoint: Endpoint) -> Mapping[str, object] | None:
    """The server's own options; None outside development mode."""
    try:
        said = endpoint.get("/server_info?config_format=json")
    except Rejected as error:
        if error.status == UNKNOWN:
            return None
        raise
    return said["vllm_config"] if isinstance(said, dict) and "vllm_config" in said else {}


def as_mapping(reply: Reply) -> dict:
    """The JSON object of a reply. Raises ValueError for any other."""
    said = as_json(reply)
    if not isinstance(said, Mapping):
        raise ValueError("what came is no JSON object")
    return said


def said_if_any(reply: Reply) -> dict:
    """The JSON of a reply; {} for an empty body or plain text, where only the status counts."""
    try:
        return as_mapping(reply)
    except ValueError:
        return {}


def names(reply: Reply) -> list[str]:
    """Names in vLLM's list of models, which has at least one.

    Raises ValueError for any other reply.
    """
    data = as_mapping(reply).get("data")
    found = [card.get("id") for card in data or () if isinstance(card, dict)]
    if not found or not all(isinstance(name, str) for name in found):
        raise ValueError("what came is no list of models")
    return found


def unavailable(error: RemoteError, hint: str = "") -> EngineUnavailable:
    return EngineUnavailable(f"the engine gave no answer: {error}" + (f"; {hint}" if hint else ""))
