"""The command line of `vllm serve` with the flags that the client needs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tandem.policies.engines.serving import Command, Served
from tandem.policies.language.records import Sampling
from tandem.policies.lora import Lora

if TYPE_CHECKING:
    from tandem.policies.engines.vllm_server import VllmServer

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # values of --max-lora-rank
OF_CLIENTS = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
PICKLES = "VLLM_ALLOW_INSECURE_SERIALIZATION"  # servers inherit it
ON_CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def serve(option: VllmServer, served: Served, sampling: Sampling, lora: Lora | None) -> Command:
    """The command for an `option`. Raises ValueError for a name that looks like a flag."""
    refuse_flag("model.path", served.path)
    refuse_flag("model.dtype", served.dtype)
    refuse_flag("rollout.engine.model", option.model)
    words = ["serve", served.path, "--host", served.host, "--port", str(served.port)]
    words += [
        "--dtype",
        served.dtype,
        "--max-num-seqs",
        str(option.concurrency),
        "--enable-scale-out",
    ]
    words += ["--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    asked = sampling.max_prompt_tokens
    room = "auto" if asked is None else str(asked + sampling.max_new_tokens)
    words += ["--max-model-len", room]  # auto: what its memory holds, at most the model's own
    if option.model is not None:
        words += ["--served-model-name", option.model]
    if option.sleeps:
        words += ["--enable-sleep-mode"]
    if lora is not None:
        words += ["--enable-lora", "--max-lora-rank", str(room_for_rank(lora.r))]
        words += ["--max-loras", str(sampling.staleness + 2)]  # a new one loads before an old goes
    if option.transfer == "broadcast":
        words += ["--weight-transfer-config", f'{{"backend": "{backend_of(option)}"}}']
    if not served.devices:
        return Command(words=[*words, "--enforce-eager"], environment=OF_CLIENTS | ON_CPU)
    words += ["--gpu-memory-utilization", str(option.memory)]
    words += ["--tensor-parallel-size", str(len(served.devices))]
    on_gpus = {"CUDA_VISIBLE_DEVICES": ",".join(served.devices)}
    return Command(words=words, environment=OF_CLIENTS | on_gpus)


def backend_of(option: VllmServer) -> str:
    """The backend of vLLM's weight transfer. Raises ValueError without leave to read pickles."""
    if not (option.starts or option.sleeps):
        return "nccl"
    # On the trainer's own GPU: NCCL does not connect two processes there.
    if os.environ.get(PICKLES) != "1":
        raise ValueError(
            "rollout.engine.transfer=broadcast on the trainer's GPU (ipc): vLLM then reads "
            "pickles, by which whoever reaches its port can run code; set "
            f"{PICKLES}=1 if no one else can, or rollout.engine.transfer=files"
        )
    return "ipc"


def refuse_flag(key: str, word: str | None) -> None:
    if word is not None and word.startswith("-"):
        raise ValueError(f"{key}={word}: the engine would take it for a flag; give another name")


def room_for_rank(rank: int) -> int:
    """The least value of --max-lora-rank for a rank. Raises ValueError for too large a rank."""
    if rank > RANKS[-1]:
        raise ValueError(f"model.lora.r={rank}: vLLM serves adapters up to rank {RANKS[-1]}")
    return next(room for room in RANKS if room >= rank)
