"""A plugin of vLLM: weights come from the trainer over gloo, which needs no GPU.

It runs in vLLM's own environment, which has no tandem. `write_entry_point` writes a folder, next to
this one on PYTHONPATH, in which vLLM finds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

WAIT = timedelta(seconds=120)


def register() -> None:
    """Called by vLLM in each of its processes."""
    import torch
    from torch import distributed as dist
    from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
    from vllm.distributed.weight_transfer.base import (
        WeightTransferInitInfo,
        WeightTransferUpdateInfo,
    )
    from vllm.model_executor.model_loader.reload import (
        finalize_layerwise_reload,
        initialize_layerwise_reload,
    )

    @dataclass
    class Meeting(WeightTransferInitInfo):
        master_address: str
        master_port: int
        world_size: int
        rank_offset: int

    @dataclass
    class Update(WeightTransferUpdateInfo):
        names: list[str]
        dtype_names: list[str]
        shapes: list[list[int]]

    class Gloo(WeightTransferEngine[Meeting, Update]):
        init_info_cls, update_info_cls = Meeting, Update
        group: dist.ProcessGroupGloo | None = None

        def init_transfer_engine(self, info: Meeting) -> None:
            rank = info.rank_offset + self.parallel_config.rank
            store = dist.TCPStore(
                info.master_address, info.master_port, info.world_size, False, timeout=WAIT
            )
            self.group = dist.ProcessGroupGloo(store, rank, info.world_size, WAIT)

        def start_weight_update(self) -> None:
            initialize_layerwise_reload(self.model)

        def finish_weight_update(self) -> None:
            finalize_layerwise_reload(self.model, self.model_config)

        def update_weights(self, update_info: dict) -> None:
            """Without synchronisation of an accelerator, which does not exist here."""
            self.receive_weights(self.parse_update_info(update_info))

        def receive_weights(self, info: Update) -> None:
            for name, dtype, shape in zip(info.names, info.dtype_names, info.shapes, strict=True):
                weight = torch.empty(shape, dtype=getattr(torch, dtype))
                self.group.broadcast(weight.flatten().view(torch.uint8), 0).wait()
                self.model.load_weights([(name, weight)])

        def shutdown(self) -> None:
            self.group = None

    WeightTransferEngineFactory.register_engine("gloo", Gloo)


def write_entry_point(folder: Path) -> None:
    """Write the entry point that makes this module a plugin."""
    place = folder / "gloo_transfer-0.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: gloo-transfer\nVersion: 0\n")
    (place / "entry_points.txt").write_text(
        "[vllm.general_plugins]\ngloo_transfer = gloo_transfer:register\n"
    )
