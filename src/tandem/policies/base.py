"""The base of every policy: a module in eval mode, whose trained weights have names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Self

from torch import Tensor, nn

from tandem.policies.language.pretrained import copy_into
from tandem.types import Rollout

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Policy(nn.Module, ABC):
    """Has no weights before `load`. A subclass says in `trainable` which of them learn."""

    unit = "tokens"  # what a sample is counted in, for people
    # Why a sampler and its trainer usually disagree, likeliest first, and what varies samples.
    disagrees_by = (
        "another temperature, rollout.top_p or rollout.top_k on one side; stale weights in the "
        "engine; token ids shifted by one; a lower dtype"
    )
    disagreement = 0.0  # nats per step on average, as measured on a few rows; 0: they are one
    varies_by = "rollout.temperature"
    iteration = 0
    packs = False  # whether a row costs a pass its own steps, not those of the longest beside it

    def suspicion(self) -> str:
        """Why its sampler and its trainer differ, as far as can be told."""
        return f"usual causes, in this order: {self.disagrees_by}"

    def begin(self, iteration: int) -> None:
        """Which iteration the next samples belong to: it may name their draws."""
        self.iteration = iteration

    def ready(self) -> None:
        """All ranks are about to sample, with the newest weights."""

    def updated(self) -> None:
        """An optimiser has made a step."""

    def for_epoch(self, rollout: Rollout, epoch: int) -> Rollout:
        """The same rows for another pass over them; the first one, epoch 0, is as it was sampled.

        Noise that a policy puts on its rows may be new, if nothing else is known of the old one.
        """
        return rollout

    def ended(self) -> None:
        """An iteration is over."""

    def at_own_pace(
        self, sampling: object = None, needs: frozenset[str] = frozenset()
    ) -> AbstractContextManager[None]:
        """With all that ranks wait for one another to get: the weights that a sampling names (None:
        the policy's own), and those that `complete` asks to fill `needs`.

        Within, a rank calls `sample` with that sampling, and `complete`, as often as it has rows
        for. All ranks begin it equally often; no rank waits for another to end it.
        """
        return nullcontext()

    def shard(self, mesh: DeviceMesh) -> None:
        """Cut all weights over the ranks of a mesh, once.

        From then on all ranks call `evidence` and `errors` equally often, as they wait for one
        another there, and begin `at_own_pace`, `save`, and, outside of the former, `sample` and
        `complete` equally often.
        """
        raise ValueError(f"{type(self).__name__} cannot be cut over ranks; set trainer=ddp")

    @abstractmethod
    def trainable(self) -> dict[str, nn.Parameter]:
        """All that learns, by name."""

    def train(self, mode: bool = True) -> Self:
        """The networks stay in eval mode: no dropout, in sampling as in training."""
        super().train(mode)
        for child in self.children():
            child.eval()
        return self

    def weights(self) -> dict[str, Tensor]:
        """What a checkpoint holds: all that is trained."""
        return {name: parameter.detach() for name, parameter in self.trainable().items()}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy into the tensors that are there, so that an optimiser keeps its hold of them."""
        copy_into(self.trainable(), weights)
