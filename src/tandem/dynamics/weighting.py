"""Weightings of errors: minus log p as a function of noise level and error, in place of nats."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from tandem.contracts import positive, register_error_weighting
from tandem.dynamics.regression import FLOOR


# -log p is the mean squared error itself (default)
@register_error_weighting
def plain(sigma: Tensor, energy: Tensor) -> Tensor:
    """The mean squared error itself: [B, T] -> [B, T]. Tandem's own name for no weight."""
    return energy


# -log p is the mean squared error times the noise level
@register_error_weighting("sigma")
def by_sigma(sigma: Tensor, energy: Tensor) -> Tensor:
    """sigma energy (this and all below: AWM, arXiv:2509.25050): [B, T] -> [B, T]."""
    return sigma * energy


# -log p is the mean squared error of the predicted picture
@register_error_weighting("sigma_squared")
def by_sigma_squared(sigma: Tensor, energy: Tensor) -> Tensor:
    """sigma^2 energy: the mean squared error of x0.

    Shape: [B, T] -> [B, T]. Source: AWM, arXiv:2509.25050.
    """
    return sigma.square() * energy


# -log p is about the norm of the error, times the noise level
@register_error_weighting
def huber(sigma: Tensor, energy: Tensor) -> Tensor:
    """sigma (sqrt(energy + 1e-10) - 1e-5): about the norm of the error.

    Shape: [B, T] -> [B, T]. Source: AWM, arXiv:2509.25050.
    """
    return sigma * ((energy + FLOOR).sqrt() - FLOOR**0.5)


# -log p is about the error to the power 2p, times the noise level (Advantage Weighted Matching)
@register_error_weighting
def ghuber(
    sigma: Tensor,
    energy: Tensor,
    *,
    p: Annotated[float, positive] = 0.25,  # exponent of the squared error; 1/2 is twice huber
) -> Tensor:
    """sigma / p ((energy + 1e-10)^p - 1e-10^p): below p = 1/2 large errors count less.

    Shape: [B, T] -> [B, T]. Source: AWM, arXiv:2509.25050.
    """
    return sigma / p * ((energy + FLOOR) ** p - FLOOR**p)
