"""Two policies as one: weights and state are the union of both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from tandem.policies.base import Policy
from tandem.policies.chain.records import flatten_segments
from tandem.policies.flow.policy import FlowPolicy
from tandem.policies.language.policy import LanguagePolicy
from tandem.policies.request import Request
from tandem.policies.weights import select_prefix

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class PairedPolicy(Policy):
    """A language policy and a flow policy; a subclass defines how both make one sample."""

    text: LanguagePolicy
    picture: FlowPolicy
    parts: Mapping[str, LanguagePolicy | FlowPolicy]  # by segment
    request: Request

    @property
    def iteration(self) -> int:
        return self.text.iteration

    @iteration.setter
    def iteration(self, number: int) -> None:
        for policy in self.parts.values():
            policy.iteration = number

    @property
    def learning(self) -> dict[str, LanguagePolicy | FlowPolicy]:
        """The trained policies, by segment."""
        return {name: p for name, p in self.parts.items() if name not in self.request.frozen}

    @property
    def device(self) -> torch.device:
        return self.text.device

    def ready(self) -> None:
        for policy in self.parts.values():
            policy.ready()

    def notify(self, event: Literal["update", "iteration"]) -> None:
        for policy in self.parts.values():
            policy.notify(event)

    def shard(self, mesh: DeviceMesh) -> None:
        for policy in self.parts.values():
            policy.shard(mesh)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Trained weights, named text.NAME and picture.NAME."""
        return flatten_segments(
            {name: policy.trainable() for name, policy in self.learning.items()}
        )

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """One group per segment, with its own learning rate and gradient clip."""
        return {name: list(policy.trainable().values()) for name, policy in self.learning.items()}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Load the trained weights of each segment. Of any shape [...]."""
        for name, policy in self.learning.items():
            policy.load_weights(select_prefix(weights, f"{name}."))

    def state(self) -> dict[str, Tensor]:
        """The state of both policies, without weights. Of any shape [...]."""
        return flatten_segments({name: policy.state() for name, policy in self.parts.items()})

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned. Of any shape [...]."""
        for name, policy in self.parts.items():
            policy.load_state(select_prefix(state, f"{name}."))

    def save(self, folder: str | Path) -> None:
        """Save each in its own format, in the folders text and picture."""
        for name, policy in self.parts.items():
            policy.save(Path(folder) / name)
