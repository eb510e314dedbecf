"""The HTTP endpoints of vLLM 0.31 to 0.33 as calls; docs/engines.md lists them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tandem.policies.engines.replies import Generation
from tandem.remote import Endpoint, Rejected, RemoteError, Reply, as_body, as_json
from tandem.stop import EngineUnavailable

NO_MODELS = "the reply is not a list of models"
UNKNOWN = 404
NO_TOKENS = (403, 404, 405)  # from a token endpoint that is disabled or missing
INVALID = (400, 422)  # from one that is available, to an empty request
ADAPTERS, DEVELOPMENT = (
    "start the server with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True",
    "start the server with VLLM_SERVER_DEV_MODE=1",
)


def ignore_body(reply: Reply) -> None:
    """Ignore the body of an endpoint that only returns a status."""


class VllmApi:
    """Calls to a server; each raises EngineUnavailable if the server does not answer."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    # State.

    def takes_tokens(self) -> bool:
        """Whether the server has the token endpoint."""
        try:
            self.endpoint.post(Generation.path, b"{}", read=ignore_body)
        except Rejected as error:
            if error.status in INVALID + NO_TOKENS:
                return error.status in INVALID
            raise unavailable(error) from None
        except RemoteError as error:
            raise unavailable(error) from None
        return True

    def models(self) -> list[str]:
        """The names under which weights are served, the base first."""
        try:
            return self.endpoint.get("/v1/models", read=names)
        except RemoteError as error:
            raise unavailable(error) from None

    def weight_version(self) -> str | None:
        """The version of the weights, since vLLM 0.31 or so; None: there is no such endpoint."""
        said = self._get("/weight_info")
        return None if said is None else str(said.get("weight_version"))

    def is_sleeping(self) -> bool:
        """Whether the server sleeps; False for one that cannot."""
        said = self._get("/is_sleeping")
        return said is not None and said.get("is_sleeping") is True

    # Weights.

    def load_adapter(self, name: str, folder: Path, *, in_place: bool = False) -> None:
        """Load an adapter. in_place: replace a loaded one of the same name."""
        loaded = {"lora_name": name, "lora_path": str(folder.resolve()), "load_inplace": in_place}
        try:
            self._send("/v1/load_lora_adapter", loaded)
        except RemoteError as error:
            # An attempt whose reply was lost did load the adapter.
            if in_place or name not in self.models():
                raise unavailable(error, ADAPTERS) from None

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter, if it is loaded."""
        self._post("/v1/unload_lora_adapter", {"lora_name": name}, optional=True)

    def reload_weights(self, folder: Path) -> None:
        """Read all weights from files."""
        files = {"weights_path": str(folder.resolve())}
        self._post("/collective_rpc", {"method": "reload_weights", "kwargs": files})

    def transfer_backend(self) -> str | None:
        """The backend of vLLM's weight transfer; None if the server was started without."""
        return backend_in(configuration(self.endpoint))

    def world_size(self) -> int:
        """The number of workers in a transfer."""
        return int((self._get("/get_world_size") or {"world_size": 1})["world_size"])

    def init_weight_transfer(self, meeting: Mapping[str, object]) -> None:
        """Join the group of a transfer. Returns once both ends have joined."""
        self.step_of_transfer("/init_weight_transfer_engine", {"init_info": meeting})

    def start_weight_update(self) -> None:
        self.step_of_transfer("/start_weight_update", {})

    def update_weights(self, description: Mapping[str, object]) -> None:
        """Receive the described tensors. Returns once all have arrived."""
        self.step_of_transfer("/update_weights", {"update_info": description})

    def finish_weight_update(self) -> None:
        self.step_of_transfer("/finish_weight_update", {})

    def reset_prefix_cache(self) -> None:
        """Free the cached prompts, unless rows are in flight."""
        self._post("/reset_prefix_cache", {})

    def pause(self) -> None:
        """Pause rows in flight, which stay in memory; new ones wait."""
        self._post("/pause?mode=keep", {})

    def resume(self) -> None:
        """Continue, if the server is paused and can be."""
        self._post("/resume", {}, optional=True)

    def set_weight_version(self, version: str) -> bool:
        """Name the version of the weights. False: there is no such endpoint."""
        named = {"new_version": version}
        return self._post("/update_weight_version", named, optional=True) is not None

    # Memory.

    def sleep(self, *, level: int) -> None:
        self._post(f"/sleep?level={level}", {})

    def wake(self, tag: str) -> None:
        self._post(f"/wake_up?tags={tag}", {})

    # Requests.

    def _get(self, path: str) -> dict | None:
        """The reply; None: there is no such endpoint."""
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

    def step_of_transfer(self, path: str, payload: object) -> None:
        """Request a step of a transfer, which must not be repeated."""
        try:
            self.endpoint.post(path, as_body(payload), read=parse_optional_json, repeatable=False)
        except RemoteError as error:
            raise unavailable(error, "see the server's log") from None

    def _send(self, path: str, payload: object) -> dict:
        return self.endpoint.post(path, as_body(payload), read=parse_optional_json)


def configuration(endpoint: Endpoint) -> Mapping[str, object] | None:
    """The server's own options; None outside development mode."""
    try:
        said = endpoint.get("/server_info?config_format=json")
    except Rejected as error:
        if error.status == UNKNOWN:
            return None
        raise
    match said:
        case {"vllm_config": config}:
            return config
    return {}


def backend_in(config: Mapping[str, object] | None) -> str | None:
    """The backend of vLLM's weight transfer; None if the server was started without."""
    match config:
        case {"weight_transfer_config": {"backend": backend}}:
            return backend
    return None


def as_mapping(reply: Reply) -> dict:
    """The JSON object of a reply. Raises ValueError for any other."""
    said = as_json(reply)
    if not isinstance(said, Mapping):
        raise ValueError("the reply is not a JSON object")
    return said


def parse_optional_json(reply: Reply) -> dict:
    """The JSON of a reply; {} for an empty body or plain text, where only the status counts."""
    try:
        return as_mapping(reply)
    except ValueError:
        return {}


def names(reply: Reply) -> list[str]:
    """Names in vLLM's list of models, which has at least one.

    Raises ValueError for any other reply.
    """
    match as_mapping(reply):
        case {"data": [_, *_] as cards}:
            return list(map(_name, cards))
    raise ValueError(NO_MODELS)


def _name(card: object) -> str:
    match card:
        case {"id": str(name)}:
            return name
    raise ValueError(NO_MODELS)


def unavailable(error: RemoteError, hint: str = "") -> EngineUnavailable:
    return EngineUnavailable(f"the engine gave no answer: {error}" + (f"; {hint}" if hint else ""))
