"""Numerical check of the steps of a flow: one dry run of all of them, without weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tandem.contracts import numbers_of
from tandem.legality.case import Case
from tandem.settings.settings import Dynamics

TOKENS_OF_A_PICTURE = 256  # an arbitrary latent size: only dynamic shifts read it


def steps_can_be_taken(case: Case) -> Iterator[str]:
    """The steps of a rollout fit its schedule and its random steps."""
    dynamics, steps = case.plan.dynamics, case.painter[0].arguments.get("steps")
    if dynamics.schedule is None or dynamics.kernel is None or steps is None:
        return
    *_, rollout = case.samplers  # the sampler of pictures is the last one of a chain
    place = f"dynamics.schedule of {rollout}.steps={steps}"
    try:
        levels = dynamics.schedule(steps, TOKENS_OF_A_PICTURE)
        if dynamics.stochastic is None:
            return
        place = f"{rollout}.steps={steps}{_length(dynamics)}"
        chosen = dynamics.stochastic(steps, 0, case.plan.seed)
    except (ValueError, ArithmeticError) as error:
        yield f"{place}: {error}"
        return
    yield from _infinite(dynamics, levels, chosen)


def _length(dynamics: Dynamics) -> str:
    length = numbers_of(dynamics.stochastic).get("length")
    return "" if length is None else f" dynamics.stochastic.length={length}"


def _infinite(dynamics: Dynamics, levels: Tensor, chosen: Sequence[int]) -> Iterator[str]:
    sigma, after = levels[list(chosen)], levels[[step + 1 for step in chosen]]
    latent = torch.ones(len(chosen), 1)
    taken = dynamics.kernel(latent, latent, sigma, after)
    finite = taken.mean[:, 0].isfinite() & taken.std.isfinite()
    for place in (~finite).nonzero()[:1, 0].tolist():
        yield (
            f"dynamics={dynamics.name}: the step from the noise level {sigma[place]:g} to "
            f"{after[place]:g} is not finite; set another dynamics/schedule or dynamics.kernel"
        )


RULES = (steps_can_be_taken,)
