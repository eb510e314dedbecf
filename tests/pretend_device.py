"""A simulated device: tensors report `sim:0`, and their values are on the CPU.

An operation on tensors of both devices raises, as on a GPU. Every synchronising read of a value
and every copy from the host to the device are counted by the line of Tandem that makes them. The
registration lasts for the whole process.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

import tandem
import tandem.launch.run as run_module
from tandem.launch.trainer import quiet_lightning
from tandem.settings.settings import Devices

NAME = "sim"
SOURCES = str(Path(__file__).parents[1] / "src")
aten = torch.ops.aten
COPIES = {aten._to_copy, aten.copy_, aten._copy_from}
INDICES = {aten.index, aten.index_put, aten.index_put_, aten._unsafe_index}  # may be on the CPU
JOINS = {aten.cat, aten.stack}  # torch requires every part on one device
READS = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten._unique2}

LEAVE = {Tensor.tolist, Tensor.numpy, Tensor.__format__}  # calls that return no tensor
WAITS: Counter[str] = Counter()  # of the last Device, by line
ARRIVALS: Counter[str] = Counter()  # copies from the host to it, by line
# Their registrations end with these objects.
AUTOCAST = torch.library.Library("_", "IMPL")
DEVICE = torch.library.Library("aten", "IMPL")


class Mixed(RuntimeError):
    """An operation that a GPU would refuse."""


class Simulated(Tensor):
    """A tensor on the simulated device."""

    @staticmethod
    def __new__(cls, own: Tensor) -> Simulated:
        made = Tensor._make_wrapper_subclass(
            cls,
            own.size(),
            strides=own.stride(),
            storage_offset=own.storage_offset(),
            dtype=own.dtype,
            device=torch.device(NAME, 0),
            requires_grad=own.requires_grad,
        )
        made.own = own
        return made

    def __repr__(self) -> str:
        return f"Simulated({self.own})"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["own"], None

    @staticmethod
    def __tensor_unflatten__(parts: dict, meta: None, size: Any, stride: Any) -> Simulated:
        return Simulated(parts["own"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return run(function, args, kwargs or {})


class BelowDispatch(TorchFunctionMode):
    """Calls that torch answers before dispatch."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        given = dict(kwargs or {})
        if function in (torch.tensor, torch.as_tensor) and is_ours(given.get("device")):
            where = given.pop("device")
            return function(*args, **given).to(where)
        if function in (Tensor.untyped_storage, Tensor.data_ptr) and isinstance(args[0], Simulated):
            return function(args[0].own)
        if function in LEAVE and isinstance(args[0], Simulated):
            return function(args[0].cpu(), *args[1:])
        if function is Tensor.new_tensor and isinstance(args[0], Simulated):
            return torch.tensor(*args[1:], dtype=given.get("dtype") or args[0].dtype).to(NAME)
        return function(*args, **given)


class Device(TorchDispatchMode):
    """A block in which the device can be used; `WAITS` and `ARRIVALS` start at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.above = BelowDispatch()

    def __enter__(self) -> Device:
        WAITS.clear()
        ARRIVALS.clear()
        self.above.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.above.__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return run(function, args, kwargs or {})


def is_ours(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME


def run(function, args: tuple, kwargs: dict):
    """Run an operation; one on the device runs on the CPU values of its tensors."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    here = [x for x in tensors if isinstance(x, Simulated)]
    to = kwargs.get("device")
    if not here and not is_ours(to):
        return function(*args, **kwargs)
    check(function, args, tensors if here else [])
    elsewhere = here and to is not None and not is_ours(to)
    across = function.overloadpacket is aten.copy_ and len(here) < 2
    if arrives(function, args, tensors, here):
        ARRIVALS[asker()] += 1
    elif elsewhere or across or function.overloadpacket in READS:
        WAITS[asker()] += 1
    moved = kwargs if to is None else kwargs | {"device": torch.device("cpu")}
    own = tree_map(lambda x: x.own if isinstance(x, Simulated) else x, (args, moved))
    out = function(*own[0], **own[1])
    if elsewhere:
        return out.clone()
    if across and not isinstance(args[0], Simulated):
        return args[0]
    made = tree_map(lambda x: Simulated(x) if isinstance(x, Tensor) else x, out)
    return return_and_correct_aliasing(function, args, kwargs, made) if here else made


def arrives(function, args: tuple, tensors: list[Tensor], here: list[Simulated]) -> bool:
    """Whether the operation copies a tensor from the host to the device. From memory that is not
    pinned, as a list or an ordinary tensor is, the host waits for it."""
    packet = function.overloadpacket
    if packet in INDICES:
        return any(isinstance(x, Tensor) and not isinstance(x, Simulated) for x in args[1])
    if packet is aten.copy_:
        return isinstance(args[0], Simulated) and len(here) < 2
    return bool(tensors) and not here  # it has one on the CPU, and makes one on the device


def check(function, args: tuple, tensors: list[Tensor]) -> None:
    """Raise for tensors of both devices; zero-dimensional ones and indices may be on the CPU."""
    packet = function.overloadpacket
    if packet in COPIES:
        return
    if packet in INDICES:
        tensors = [args[0], *(x for x in args[2:3] if isinstance(x, Tensor))]
    least = 0 if packet in JOINS else 1
    odd = [x for x in tensors if not isinstance(x, Simulated) and x.ndim >= least]
    if odd:
        raise Mixed(f"{function}: {[tuple(x.shape) for x in odd]} on the CPU, in {asker()}")


def asker() -> str:
    """The innermost line of Tandem: file:line function."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(SOURCES):
            place = file[len(SOURCES) + 1 :].removeprefix("tandem/")
            return f"{place}:{frame.f_lineno} {frame.f_code.co_qualname}"
        frame = frame.f_back
    return "elsewhere"


class Module(_DummyBackendModule):
    """The module `torch.sim` that torch requires."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


class Accelerator(CPUAccelerator):
    """The accelerator that Lightning requires."""

    def setup_device(self, device: torch.device) -> None:
        assert device.type == NAME


def empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
    """For code outside of dispatch modes, such as a forward pass recomputed in backward."""
    return Simulated(torch.empty_strided(size, stride, dtype=dtype))


def empty(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return Simulated(torch.empty(size, dtype=dtype))


def copy_from(source: Tensor, to: Tensor, non_blocking: bool = False) -> Tensor:
    numbers = [x.own if isinstance(x, Simulated) else x for x in (to, source)]
    numbers[0].copy_(numbers[1])
    return to


def trainer_for(devices: Devices, callbacks: list[Callback]) -> Trainer:
    """Replaces `tandem.launch.trainer.trainer_for`."""
    quiet_lightning()
    return Trainer(
        strategy=SingleDeviceStrategy(device=torch.device(NAME, 0), accelerator=Accelerator()),
        max_epochs=1,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def register() -> None:
    """Register the device, once per process."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=Module())
    below = {
        "empty_strided": empty_strided, "empty.memory_format": empty, "_copy_from": copy_from
    }  # fmt: skip
    for name, kernel in below.items():
        DEVICE.impl(name, kernel, "PrivateUse1")
    # Autocast casts nothing here and is bypassed.
    AUTOCAST.fallback(torch.library.fallthrough_kernel, dispatch_key="AutocastPrivateUse1")


def train_runs(lines: Sequence[Sequence[str]]) -> dict:
    """Consecutive command lines: the last metrics, and all waits."""
    with Device():
        for overrides in lines:
            result = tandem.train("trainer=cpu", *overrides)
    return {"metrics": result.metrics, "waits": dict(WAITS), "arrivals": dict(ARRIVALS)}


def attempt(lines: Sequence[Sequence[str]]) -> dict:
    """The result, or the end of the traceback, so that later runs still take place."""
    try:
        return train_runs(lines)
    except Exception:
        return {"failed": traceback.format_exc()[-3000:]}


def mixed() -> dict:
    """Waits for a value of the device, copies to it, and the refusal of an operation with a CPU
    tensor."""
    with Device():
        there = torch.ones(2, device="sim:0") + torch.ones(())  # a CPU scalar is allowed
        int(there.sum())
        counted = {"waits": sum(WAITS.values()), "before": sum(ARRIVALS.values())}
        torch.tensor([1, 2], device="sim:0")
        torch.ones(2).to("sim:0")
        there.copy_(torch.ones(2))
        there[torch.tensor([0, 1])]
        counted |= {"arrivals": sum(ARRIVALS.values()), "later": sum(WAITS.values())}
        try:
            torch.ones(2, device="sim:0") + torch.ones(2)
        except Mixed:
            return counted | {"refused": traceback.format_exc()}
    return counted | {"refused": ""}


def main(runs: dict[str, Sequence[Sequence[str]]]) -> None:
    """`python train.py` on the device, run after run; one line for each."""
    register()
    run_module.trainer_for = trainer_for
    print("TOLD " + json.dumps(["mixed", mixed()]), flush=True)
    for name, lines in runs.items():
        print("TOLD " + json.dumps([name, attempt(lines)]), flush=True)


if __name__ == "__main__":
    main(json.load(sys.stdin))
