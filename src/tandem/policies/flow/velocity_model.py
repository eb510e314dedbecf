"""The velocity field of a network, evaluated at points for prompts, in chunks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tandem.contracts.wrong_output import wrong_value
from tandem.dynamics.guidance import guide
from tandem.policies.flow.adapter import Adapter
from tandem.policies.flow.components import components, join, painter_of, readers_of
from tandem.policies.flow.embeddings import PromptEmbedding, PromptEmbeddingCache
from tandem.policies.flow.records import Condition
from tandem.policies.request import Request
from tandem.policies.weights import Precision, Replicated, join_graph
from tandem.progress import PROGRESS
from tandem.types import Prompt, widen

Count = TypeVar("Count", int, Tensor)


class VelocityModel:
    """A transformer with its adapter: velocities of latents, with optional guidance."""

    def __init__(
        self,
        network: nn.Module,
        adapter: Adapter,
        *,
        precision: Precision,
        compiled: bool = False,
    ) -> None:
        self.network, self.adapter, self.precision = network, adapter, precision
        self.compiled = compiled
        painter = painter_of(network)
        self.run = compile_parts(painter) if compiled else painter
        self.reads = bool(readers_of(network))
        self.weights = Replicated()

    def copy(self) -> VelocityModel:
        """The same with weights of its own."""
        own = {"precision": self.precision, "compiled": self.compiled}
        return VelocityModel(copy.deepcopy(self.network), self.adapter, **own)

    def __call__(
        self, x: Tensor, sigma: Tensor, conditioning: PromptEmbedding, *, scale: float
    ) -> Tensor:
        """[N, ...] float32, with classifier-free guidance if scale is above 1. sigma: [N]"""
        prompted, unprompted = conditioning.prompted, conditioning.unprompted
        if scale == 1:
            return widen(self.predict(x, sigma, prompted))
        if unprompted is None or scale < 1:
            return guide(x, None, scale=scale)  # raises, before a pass is made
        both = {name: torch.cat([prompted[name], unprompted[name]]) for name in prompted}
        velocity = self.predict(torch.cat([x, x]), torch.cat([sigma, sigma]), both)
        guided = self.adapter.guide(*velocity.chunk(2), scale=scale, sigma=sigma)
        if not isinstance(guided, Tensor) or guided.shape != x.shape:
            raise wrong_value(self.adapter.guide, guided, f"a float tensor {[*x.shape]}")
        return guided

    def with_states(
        self, x: Tensor, sigma: Tensor, conditioning: PromptEmbedding, *, scale: float
    ) -> tuple[Tensor, Tensor]:
        """The velocity, and the token mean of the last hidden states for the prompt: [N, H].

        The network must not be compiled: the hook would only run in the first call.
        """
        seen: list[Tensor] = []
        reader, _ = self.adapter.reader(painter_of(self.network))
        hook = reader.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        try:
            velocity = self(x, sigma, conditioning, scale=scale)
        finally:
            hook.remove()
        return velocity, seen[0][: len(x)].mean(1)

    def predict(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """The velocity given a condition: [B, ...], sigma [B]. Raises WrongOutput for another shape
        or dtype, and without a gradient."""
        with self.precision.on(x.device):
            if self.reads:
                velocity = self.weights(lambda: self._read(x, sigma, condition))
            else:
                ask = self.adapter.velocity
                velocity = self.weights(lambda: ask(self.run, x, sigma, condition))
        PROGRESS.report()
        shaped = isinstance(velocity, Tensor) and velocity.shape == x.shape
        if not shaped or not velocity.is_floating_point():
            raise wrong_value(self.adapter.velocity, velocity, f"a float tensor {[*x.shape]}")
        if torch.is_grad_enabled() and not velocity.requires_grad and self.learns():
            raise wrong_value(
                self.adapter.velocity, velocity, "it with its gradient, without .detach()"
            )
        return velocity

    def learns(self) -> bool:
        """Whether some weight is trained."""
        return any(weight.requires_grad for weight in self.network.parameters())

    def _read(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        read = self.adapter.read(self.network, condition)
        velocity = self.adapter.velocity(self.run, x, sigma, read)
        # Some encoders are read before their last layer.
        readers = [self.network[name] for name in self.network.readers]
        return join_graph(velocity, (p for reader in readers for p in reader.parameters()))


def compile_parts(network: nn.Module) -> nn.Module:
    """The same network, with each component compiled separately."""
    parts = components(network).items()
    return join({name: torch.compile(part, dynamic=True) for name, part in parts})


class ChunkedForward:
    """Velocities at N points, in chunks of at most `max_rows` rows.

    With gradient, chunks are recomputed one by one in backward, so memory is that of one chunk.
    """

    def __init__(self, library: PromptEmbeddingCache, *, max_rows: int) -> None:
        if max_rows < 1:
            raise ValueError(f"model.row_budget is {max_rows}; it must be at least 1")
        self.library, self.max_rows = library, max_rows

    def __call__(
        self,
        field: VelocityModel,
        prompts: Sequence[Prompt],
        x: Tensor,
        sigma: Tensor,
        *,
        scale: float,
        critic: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Velocities [N, ...], and a critic's values of the states, [N]. x: [N, ...]."""

        def predict(part: Tensor) -> tuple[Tensor, Tensor | None]:
            some = [prompts[i] for i in part.tolist()]
            conditioning = self.library.rows(some, x.device, guided=scale > 1)
            # Neighbours, so a view: indices would be copied to the device twice.
            own = int(part[0]), len(part)
            where = (x.narrow(0, *own), sigma.narrow(0, *own), conditioning)
            if critic is None:
                return field(*where, scale=scale), None
            velocity, states = field.with_states(*where, scale=scale)
            return velocity, critic(states)

        parts = split_evenly(len(x), self.max_rows, field.weights.passes)
        recompute = len(parts) > 1 and torch.is_grad_enabled()
        velocities, values = [], []
        for part in parts:
            some = part if len(part) else part.new_zeros(1)  # other ranks wait; result unused
            answer = checkpoint(predict, some, use_reentrant=False) if recompute else predict(some)
            velocities.append(answer[0][: len(part)])
            values += [] if critic is None else [answer[1][: len(part)]]
        return torch.cat(velocities), torch.cat(values) if values else None


def split_evenly(
    rows: int, budget: int, passes: Callable[[int], int] = lambda wanted: wanted
) -> list[Tensor]:
    """range(rows) in as few parts as fit, of even sizes: a remainder of one row would take another
    code path in BLAS, with different bits.

    `passes`: wanted -> actual number of parts; with more parts than rows, some are empty. Indices
    [n] of each part.
    """
    return list(torch.arange(rows).tensor_split(passes(max(1, -(-rows // budget)))))


def cost_of_points(
    request: Request, tokens: int | Tensor, guided: int | Tensor, points: Count
) -> Count:
    """Tokens that training processes for `points` points, in the policy and other trained networks.

    tokens: per unguided point; guided: 1 if guidance takes a second pass; they and points: [B].
    """
    return tokens * (1 + guided) * (1 + len(request.networks)) * points
