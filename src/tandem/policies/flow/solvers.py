"""Solvers of second order for the ODE, by the schedulers of diffusers: fewer calls to a picture.

They have no log-probability and noise levels of their own, so they serve evaluation, and
algorithms that train on finished pictures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Protocol

import torch
from torch import Tensor

from tandem.contracts import positive, register_solver

Shift = Annotated[float, positive]


class Solver(Protocol):
    """A scheduler of diffusers that predicts velocities; it remembers the steps it took."""

    sigmas: Tensor
    timesteps: Tensor

    def set_timesteps(self, steps: int) -> None: ...

    def step(
        self, velocity: Tensor, timestep: Tensor, x: Tensor, *, return_dict: bool
    ) -> tuple[Tensor]: ...


@register_solver
def dpm_solver(*, shift: Shift = 3.0, order: int = 2) -> Solver:
    """DPM-Solver++ with several steps in view, arXiv:2211.01095: one call a step."""
    from diffusers import DPMSolverMultistepScheduler

    return DPMSolverMultistepScheduler(
        solver_order=order,
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=shift,
    )


@register_solver
def unipc(*, shift: Shift = 3.0, order: int = 2) -> Solver:
    """UniPC, arXiv:2302.04867: one call a step, which also corrects the step before."""
    from diffusers import UniPCMultistepScheduler

    return UniPCMultistepScheduler(
        solver_order=order,
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=shift,
    )


@register_solver
def heun(*, shift: Shift = 3.0) -> Solver:
    """Heun's trapezoid: two calls a step, but the last."""
    from diffusers import FlowMatchHeunDiscreteScheduler

    return FlowMatchHeunDiscreteScheduler(shift=shift)


def noise_levels(build: Callable[[], Solver], steps: int) -> Tensor:
    """Where its steps start and the last one ends, from noise to 0: [steps + 1].

    A step of several calls has the level of each of them; `solve` goes through those.
    """
    solver = build()
    solver.set_timesteps(steps)
    levels = solver.sigmas.float().unique_consecutive()
    assert len(levels) == steps + 1
    return levels


@torch.no_grad()
def solve(
    velocity: Callable[[Tensor, Tensor], Tensor],
    start: Tensor,
    build: Callable[[], Solver],
    steps: int,
) -> Tensor:
    """From noise [N, ...] to data, in float32. velocity: (x, sigma [N]) -> [N, ...]."""
    solver = build()
    solver.set_timesteps(steps)
    # The levels as they are: some of the time steps beside them are rounded to integers.
    levels = solver.sigmas[: len(solver.timesteps)].to(start)
    x = start
    for level, timestep in zip(levels, solver.timesteps, strict=True):
        x = solver.step(velocity(x, level.expand(len(x))), timestep, x, return_dict=False)[0]
    return x
