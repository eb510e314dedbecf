"""The steps of a flow, taken once on numbers: what does not fit is known before any weight."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tandem.config.building import make
from tandem.config.composed import Composed
from tandem.config.legal import PICTURES, domain
from tandem.contracts import unbound
from tandem.settings import Dynamics

TOKENS = 256  # of some latent picture, which only the dynamic shifts read


def steps_can_be_taken(composed: Composed) -> str | None:
    dynamics, steps = composed.settings.dynamics, composed.number("rollout.steps")
    if dynamics.schedule is None or dynamics.kernel is None or steps is None:
        return None
    place = f"dynamics.schedule of rollout.steps={steps}"
    try:
        levels = dynamics.schedule(steps, TOKENS)
        if dynamics.stochastic is None:
            return None
        place = f"rollout.steps={steps}{_length(dynamics)}"
        chosen = dynamics.stochastic(steps, 0, composed.settings.seed)
    except (ValueError, ArithmeticError) as error:
        return f"{place}: {error}"
    return _first_infinite(dynamics, levels, chosen)


def noise_levels_can_be_drawn(composed: Composed) -> str | None:
    """Where whole pictures are asked about, which may be steps of the sampler."""
    dynamics, steps = composed.settings.dynamics, composed.number("rollout.steps")
    regression = composed.within("algorithm", "regression")
    if domain(composed) != PICTURES or dynamics.schedule is None or regression is None:
        return None
    try:
        made = make(regression)
    except ValueError as error:
        return str(error)
    try:
        made.levels(torch.full((1, made.count), 0.5).double(), dynamics.schedule(steps, TOKENS))
    except (ValueError, ArithmeticError) as error:
        return f"algorithm.regression of rollout.steps={steps}: {error}"
    return None


def _length(dynamics: Dynamics) -> str:
    length = unbound(dynamics.stochastic)[1].get("length")
    return "" if length is None else f" dynamics.stochastic.length={length}"


def _first_infinite(dynamics: Dynamics, levels: Tensor, chosen: Sequence[int]) -> str | None:
    sigma, after = levels[list(chosen)], levels[[step + 1 for step in chosen]]
    latent = torch.ones(len(chosen), 1)
    taken = dynamics.kernel(latent, latent, sigma, after)
    finite = taken.mean[:, 0].isfinite() & taken.std.isfinite()
    for place in (~finite).nonzero()[:1, 0].tolist():
        return (
            f"dynamics={dynamics.name}: the step from the noise level {sigma[place]:g} to "
            f"{after[place]:g} is not finite; set another dynamics/schedule or dynamics.kernel"
        )
    return None
