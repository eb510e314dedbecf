"""Weights of a policy: their names and groups, the precision of their passes, and how passes are
made over them. `sharding` has what is particular to weights that are cut over ranks.

Rewards, advantages, losses and metrics are computed outside of that precision, in the dtype of what
they get.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from tandem import distributed

Answer = TypeVar("Answer")
WIDE = (torch.float32, torch.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """The precision that a pass computes in."""

    mixed: bool = False  # bfloat16 autocast; False: the dtype of the weights
    rounds: bool = False  # whether a device may round what products of float32 matrices read

    def on(self, device: torch.device) -> AbstractContextManager[None]:
        """Around a pass on that device. Its backward follows the dtypes of the forward."""
        if not self.mixed:
            return nullcontext()
        # What autocast keeps of a weight would outlive an optimiser step.
        return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)

    def is_exact(self, network: nn.Module) -> bool:
        """Whether weights and passes are float32 or wider."""
        return not (self.mixed or self.rounds) and all(
            p.dtype in WIDE
            for p in network.parameters()
            if p.dtype.itemsize > 1  # else it is packed, and no pass computes in it
        )


FULL = Precision()


def named_parameters(network: nn.Module, critic: nn.Module | None) -> dict[str, nn.Parameter]:
    """All that learns, by name."""
    parts = {"": network} | ({} if critic is None else {"critic.": critic})
    return {
        f"{prefix}{name}": p
        for prefix, part in parts.items()
        for name, p in part.named_parameters()
        if p.requires_grad
    }


def parameter_groups(network: nn.Module, critic: nn.Module | None) -> dict[str, list[nn.Parameter]]:
    """What an optimiser treats alike; a critic, if there is one, comes last."""
    policy = [p for p in network.parameters() if p.requires_grad]
    return {"policy": policy} | ({} if critic is None else {"critic": list(critic.parameters())})


def move(network: nn.Module, device: torch.device) -> None:
    """A frozen network to where it is asked, if it is elsewhere: moving weights that are cut over
    ranks lets go of what is gathered of them."""
    if any(p.device != device for p in network.parameters()):  # it may share some that are there
        network.to(device)


@contextmanager
def lend(network: nn.Module, device: torch.device, *, returns: bool) -> Iterator[None]:
    """A frozen network where it is asked; `returns`: to host memory, where it lies meanwhile."""
    move(network, device)
    try:
        yield
    finally:
        if returns:
            move(network, torch.device("cpu"))


def bring_when_called(network: nn.Module, device: torch.device) -> None:
    """A network in host memory is on that device during each of its calls."""
    network.register_forward_pre_hook(lambda called, _: move(called, device))
    network.register_forward_hook(lambda called, *_: move(called, torch.device("cpu")))


def owned(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The part of a state that one owner remembers, by its own names. Of any shape [...]."""
    return {name.removeprefix(prefix): x for name, x in state.items() if name.startswith(prefix)}


@torch.no_grad()
def copy_into(tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Copy weights into the tensors of those names. Raises ValueError for other names or shapes.

    Of any shape [...].
    """
    if tensors.keys() != weights.keys():
        odd = sorted(tensors.keys() ^ weights.keys())
        raise ValueError(
            f"these weights are of another model: {len(odd)} names do not match, such as {odd[0]}; "
            "were model or model.lora changed since?"
        )
    for name, tensor in tensors.items():
        if tensor.shape != weights[name].shape:
            raise ValueError(
                f"weight {name} is {tuple(weights[name].shape)}, "
                f"but the model's is {tuple(tensor.shape)}"
            )
        tensor.copy_(distributed.shard_like(tensor, weights[name]))


def join_graph(value: Tensor, weights: Iterable[nn.Parameter]) -> Tensor:
    """The same numbers, with a gradient of 0 for weights that had no part in them: DDP waits for
    that of every weight. Of any shape [...]."""
    if not torch.is_grad_enabled():
        return value
    return value + sum(p.flatten()[:0].sum() for p in weights if p.requires_grad)


def clip_gradients(parts: Sequence[Sequence[torch.nn.Parameter]], most: float) -> Tensor:
    """The norm of all gradients before each part was clipped to `most` by itself, a scalar."""
    # Of a part without gradients torch gives a 0 on the CPU, wherever its weights are.
    learning = [part for part in parts if any(p.grad is not None for p in part)]
    norms = [torch.nn.utils.clip_grad_norm_(part, most) for part in learning]
    norms = [norm.full_tensor() if distributed.is_sharded(norm) else norm for norm in norms]
    return norms[0] if len(norms) == 1 else torch.stack(norms).norm()


def warn_of_rounding(trained: Mapping[str, nn.Parameter]) -> None:
    if any(p.dtype == torch.bfloat16 for p in trained.values()):
        warnings.warn(
            "bfloat16 weights are trained, and they lose updates below 1/256 of a weight: set "
            "model.lora, or model.dtype=float32 with trainer.precision=bf16-mixed",
            stacklevel=2,
        )


class Replicated:
    """Every rank has all weights, and asks them at its own pace."""

    paced = False  # whether ranks wait for one another in every call

    def __call__(self, call: Callable[[], Answer]) -> Answer:
        """What `call` says, which asks the network or pieces of it; tensors, by name or alone."""
        return call()

    def passes(self, wanted: int) -> int:
        """How many calls this rank makes where it has work for so many."""
        return wanted


@contextmanager
def all_gathered(*several: Replicated) -> Iterator[None]:
    """With all weights of each on every rank. All ranks begin it equally often."""
    with ExitStack() as stack:
        for weights in several:
            if weights.paced:  # nobody has gathered them yet
                stack.enter_context(weights.gathered())
        yield
