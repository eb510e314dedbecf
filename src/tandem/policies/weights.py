"""Weights of a policy: their names and groups, the precision of passes, and calls of the networks.
`sharding` adds what sharded weights need.

Rewards, advantages, losses and metrics are computed outside of that precision, in the dtype of
their inputs.
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
from tandem.contracts.outputs import WIDE

Answer = TypeVar("Answer")
Layer = TypeVar("Layer", bound=nn.Module)


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """The precision of a pass."""

    mixed: bool = False  # bfloat16 autocast; False: the dtype of the weights
    rounds: bool = False  # whether a device may round inputs of float32 matrix products (TF32)

    def on(self, device: torch.device) -> AbstractContextManager[None]:
        """A context for a pass on that device. Backward follows the dtypes of the forward."""
        if not self.mixed:
            return nullcontext()
        # Autocast's cached copies of weights would outlive an optimiser step.
        return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)

    def is_exact(self, network: nn.Module) -> bool:
        """Whether weights and passes are float32 or wider."""
        return not (self.mixed or self.rounds) and all(
            p.dtype in WIDE
            for p in network.parameters()
            if p.dtype.itemsize > 1  # a packed weight: no pass computes in its dtype
        )


FULL = Precision()


def named_parameters(network: nn.Module, critic: nn.Module | None) -> dict[str, nn.Parameter]:
    """All trained weights, by name."""
    parts = {"": network} | ({} if critic is None else {"critic.": critic})
    return {
        f"{prefix}{name}": p
        for prefix, part in parts.items()
        for name, p in part.named_parameters()
        if p.requires_grad
    }


def layers_of(network: nn.Module, kind: type[Layer]) -> dict[str, Layer]:
    """All layers of a kind, by name."""
    return {name: layer for name, layer in network.named_modules() if isinstance(layer, kind)}


def disable_dropout(network: nn.Module) -> None:
    """Set the probability of every dropout layer to 0."""
    for layer in layers_of(network, nn.Dropout).values():
        layer.p = 0.0


def parameter_groups(network: nn.Module, critic: nn.Module | None) -> dict[str, list[nn.Parameter]]:
    """Parameter groups of the optimiser; a critic, if there is one, comes last."""
    policy = [p for p in network.parameters() if p.requires_grad]
    return {"policy": policy} | ({} if critic is None else {"critic": list(critic.parameters())})


def move(network: nn.Module, device: torch.device) -> None:
    """Move a frozen network to a device, unless it is there: moving sharded weights frees what is
    gathered of them."""
    if any(p.device != device for p in network.parameters()):  # it may share weights of the policy
        network.to(device)


@contextmanager
def lend(network: nn.Module, device: torch.device, *, returns: bool) -> Iterator[None]:
    """A context with a frozen network on a device; `returns`: afterwards back to host memory."""
    move(network, device)
    try:
        yield
    finally:
        if returns:
            move(network, torch.device("cpu"))


def bring_when_called(network: nn.Module, device: torch.device) -> None:
    """Keep a network in host memory, and on that device during each call."""
    network.register_forward_pre_hook(lambda called, _: move(called, device))
    network.register_forward_hook(lambda called, *_: move(called, torch.device("cpu")))


def select_prefix(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The entries of a state with a prefix, without the prefix. Of any shape [...]."""
    return {name.removeprefix(prefix): x for name, x in state.items() if name.startswith(prefix)}


@torch.no_grad()
def copy_into(tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Copy weights into tensors by name. Raises ValueError if names or shapes differ.

    Of any shape [...].
    """
    if tensors.keys() != weights.keys():
        odd = sorted(tensors.keys() ^ weights.keys())
        raise ValueError(
            f"the weights are of a different model: {len(odd)} names do not match, such as "
            f"{odd[0]}; were model or model.lora changed?"
        )
    for name, tensor in tensors.items():
        if tensor.shape != weights[name].shape:
            raise ValueError(
                f"weight {name} has shape {tuple(weights[name].shape)}, but the model expects "
                f"{tuple(tensor.shape)}"
            )
        tensor.copy_(distributed.shard_like(tensor, weights[name]))


def join_graph(value: Tensor, weights: Iterable[nn.Parameter]) -> Tensor:
    """The same values, with a gradient of 0 for weights that did not contribute: DDP waits for the
    gradient of every weight. Of any shape [...]."""
    if not torch.is_grad_enabled():
        return value
    return value + sum(p.flatten()[:0].sum() for p in weights if p.requires_grad)


def clip_gradients(parts: Sequence[Sequence[torch.nn.Parameter]], most: float) -> Tensor:
    """The norm of all gradients before each part was clipped to `most` separately, a scalar."""
    # For a part without gradients torch returns 0 on the CPU, wherever its weights are.
    learning = [part for part in parts if any(p.grad is not None for p in part)]
    norms = [torch.nn.utils.clip_grad_norm_(part, most) for part in learning]
    norms = [distributed.full_tensor(norm) for norm in norms]
    return norms[0] if len(norms) == 1 else torch.stack(norms).norm()


def warn_of_rounding(trained: Mapping[str, nn.Parameter]) -> None:
    if any(p.dtype == torch.bfloat16 for p in trained.values()):
        warnings.warn(
            "bfloat16 weights are trained, which lose updates below 1/256 of a weight; set "
            "model.lora, or model.dtype=float32 with trainer.precision=bf16-mixed",
            stacklevel=2,
        )


class Replicated:
    """Every rank holds all weights, and calls the networks at its own pace."""

    lockstep = False  # whether every call synchronises the ranks

    def __call__(self, call: Callable[[], Answer]) -> Answer:
        """Run `call`, which calls the network or its submodules and returns one or more tensors."""
        return call()

    def passes(self, wanted: int) -> int:
        """The number of calls that this rank makes for `wanted` calls of its own work."""
        return wanted


@contextmanager
def gather_all(*several: Replicated) -> Iterator[None]:
    """A context with all weights of each on every rank. All ranks enter it equally often."""
    with ExitStack() as stack:
        for weights in several:
            if weights.lockstep:  # not gathered yet
                stack.enter_context(weights.gather())
        yield
