"""The SD3 transformer of diffusers, shared by Stable Diffusion 3, 3.5 and the embedded model."""

from __future__ import annotations

from torch import Tensor, nn

from tandem.policies.flow.records import Condition


def velocity(network: nn.Module, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
    """The transformer counts noise levels in thousandths: [B, C, H, W], sigma [B]."""
    dtype = network.pos_embed.proj.weight.dtype
    return network(
        hidden_states=x.to(dtype),
        timestep=1000 * sigma,
        encoder_hidden_states=condition["states"].to(dtype),
        pooled_projections=condition["pooled"].to(dtype),
        return_dict=False,
    )[0]


def image_tokens(size: int, patch: int) -> int:
    """Of a square latent."""
    return (size // patch) ** 2
