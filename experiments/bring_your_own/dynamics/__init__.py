"""The random steps of a flow: `dynamics=fading_sde`."""

from typing import Annotated

from torch import Tensor

from tandem import register_dynamics
from tandem.contracts import positive
from tandem.dynamics.kernels import Step, sde_step


@register_dynamics(of_sde=True)
def fading_sde(
    x: Tensor,
    velocity: Tensor,
    sigma: Tensor,
    next_sigma: Tensor,
    *,
    noise_level: Annotated[float, positive] = 0.5,
) -> Step:
    """The SDE with s = noise_level sigma: its noise fades as the image appears."""
    return sde_step(x, velocity, sigma, next_sigma, noise_level * sigma.double())
