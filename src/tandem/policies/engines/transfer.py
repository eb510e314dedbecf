"""vLLM's own transfer of weights, from process to process without files.

vLLM's backends are `nccl` (between GPUs), `ipc` (within one) and, from a plugin, `gloo`; a server
reports the one that it was started with by `--weight-transfer-config`. Trainer and server form a
group once, as rank 0 and ranks 1 and up; then the weights go through it one by one.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Protocol
from urllib.parse import urlsplit

import torch
from torch import Tensor
from torch import distributed as dist

from tandem import distributed
from tandem.policies.engines.protocol import Weights
from tandem.policies.engines.vllm_api import VllmApi
from tandem.remote.transport import free_port
from tandem.stop import EngineUnavailable
from tandem.threads import call_in_thread, result_of


class Sender(Protocol):
    """The trainer's end of a group whose other ends are a server's workers."""

    def send(self, tensors: Mapping[str, Tensor]) -> None:
        """Send all tensors as one update. Of any shape [...]."""


class Broadcast:
    """Sends weights to one server; a restarted server joins a new group."""

    turn = threading.Lock()  # of all servers: each may need a whole model on the trainer's GPU

    def __init__(self, api: VllmApi) -> None:
        self.api = api
        self.sender: Sender | None = None

    def send(self, weights: Weights, *, met: bool) -> None:
        """met: the server is still in the group. Raises EngineUnavailable."""
        tensors = weights.tensors()
        if not tensors:
            raise EngineUnavailable(
                f"{self.api.endpoint.url}: the server lost the weights, and this rank has none to "
                "send; resume the run (resume=RUN), or set rollout.engine.transfer=files"
            )
        try:
            sender = self.sender if met and self.sender else self._meet(weights.device)
            self.sender = None  # unless all arrives, the next handover meets anew
            sender.send(tensors)
            self.sender = sender
        except (RuntimeError, OSError) as error:  # one end of the group is gone
            raise EngineUnavailable(f"{self.api.endpoint.url}: {error}") from None

    def _meet(self, device: torch.device) -> Sender:
        backend = self.api.transfer_backend()
        if backend not in SENDERS:
            raise EngineUnavailable(
                f"{self.api.endpoint.url}: its weight transfer is {backend}, but only "
                f"{', '.join(SENDERS)} are supported; set the server's --weight-transfer-config"
            )
        return SENDERS[backend](self.api, self.api.endpoint.limits.timeout, device)


class GlooSender:
    """Transfer between host memories, by torch alone."""

    def __init__(self, api: VllmApi, seconds: float, device: torch.device) -> None:
        """seconds: how long one end waits for the other. The weights may be on any device."""
        self.api = api
        place, wait = meeting_place(api), timedelta(seconds=seconds)
        port, size = place["master_port"], place["world_size"]
        with run_in_thread(lambda: api.init_weight_transfer({**place, "rank_offset": 1})):
            store = dist.TCPStore("0.0.0.0", port, size, is_master=True, timeout=wait)
            self.group = dist.ProcessGroupGloo(store, 0, size, wait)

    def send(self, tensors: Mapping[str, Tensor]) -> None:
        self.api.start_weight_update()
        with run_in_thread(lambda: self.api.update_weights(describe_tensors(tensors))):
            for tensor in tensors.values():
                sent = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
                self.group.broadcast(sent, 0).wait()
        self.api.finish_weight_update()


class VllmSender:
    """Transfer between GPUs, by vLLM's trainer half, which is installed beside the trainer."""

    def __init__(self, api: VllmApi, seconds: float, device: torch.device, *, backend: str) -> None:
        """device: the trainer's GPU. A thread would use the first one, whichever trains."""
        if device.type != "cuda":
            raise RuntimeError(
                f"vLLM's {backend} transfer sends from a GPU, and the trainer is on "
                f"{device.type}; set rollout.engine.transfer=files"
            )
        if backend == "ipc" and distributed.world_size() > 1:
            raise RuntimeError(
                "vLLM's ipc waits for all ranks of the trainer, and only the first one sends; set "
                "rollout.engine.transfer=files"
            )
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory

        self.tensors: Mapping[str, Tensor] = {}
        self.device = device
        with torch.cuda.device(device):
            self.engine = WeightTransferTrainerFactory.trainer_init(
                trainer_info(backend, api),
                client=client_of(api, seconds),
                source=source_of(lambda: self.tensors),
            )

    def send(self, tensors: Mapping[str, Tensor]) -> None:
        with torch.cuda.device(self.device):
            self.tensors = {name: x.detach().to(self.device) for name, x in tensors.items()}
            self.engine.send_weights()
        self.tensors = {}


def client_of(api: VllmApi, seconds: float) -> object:
    """vLLM's HTTP client with the requests of this one, which carry the server's key."""
    from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient

    class Client(HTTPVLLMWeightSyncClient):
        def _post(self, path: str, json: Mapping[str, object] | None = None) -> None:
            api.step_of_transfer(f"/{path}", json or {})

    return Client(api.endpoint.url, timeout=seconds)


def trainer_info(backend: str, api: VllmApi) -> object:
    """The configuration of the trainer's side of a vLLM transfer backend."""
    if backend == "ipc":
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

        return IPCTrainerInitInfo(rank=0)
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    return NCCLTrainerInitInfo(rank=0, **meeting_place(api))


def source_of(tensors: Callable[[], Mapping[str, Tensor]]) -> object:
    """Weights as vLLM's trainer half reads them. Of any shape [...]."""
    from vllm.distributed.weight_transfer import ParamMeta, WeightSource

    class Source(WeightSource):
        def metadata(self) -> list[ParamMeta]:
            return [ParamMeta(name, t.dtype, tuple(t.shape)) for name, t in tensors().items()]

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            return iter(tensors().items())

    return Source()


SENDERS: Mapping[str, Callable[[VllmApi, float, torch.device], Sender]] = {
    "gloo": GlooSender,
    "nccl": partial(VllmSender, backend="nccl"),
    "ipc": partial(VllmSender, backend="ipc"),
}


def meeting_place(api: VllmApi) -> dict[str, str | int]:
    """Address of this process for the server, and the world size of the transfer."""
    host = urlsplit(api.endpoint.url).hostname
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing: it selects the route
        address = probe.getsockname()[0]
    size = 1 + api.world_size()
    return {"master_address": address, "master_port": free_port(), "world_size": size}


def describe_tensors(tensors: Mapping[str, Tensor]) -> dict[str, list]:
    """Names, dtypes and shapes, in the order in which they are sent. Of any shape [...]."""
    return {
        "names": list(tensors),
        "dtype_names": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()],
        "shapes": [list(tensor.shape) for tensor in tensors.values()],
    }


@contextmanager
def run_in_thread(call: Callable[[], None]) -> Iterator[None]:
    """A context with a call in a thread, whose other end is the body of the context. The body waits
    in vain for a call that has failed, so its error is raised in place of that of the body."""
    under_way = call_in_thread(call)
    try:
        yield
    except (RuntimeError, OSError):
        if under_way.done():
            result_of(under_way)
        raise
    result_of(under_way)
