"""Second-order ODE solvers, from the schedulers of diffusers: fewer network calls per picture.

They have no log-probability, so they serve evaluation and algorithms that train on finished
pictures. Each is (levels of the schedule, *, numbers) -> a scheduler with its levels set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Protocol

import torch
from torch import Tensor

from tandem.contracts import at_least, between, positive, register_solver

Shift = Annotated[float, positive]
BELOW_ONE = 1 - 1e-6  # the first level, where the logarithm of the signal must be finite


class Solver(Protocol):
    """A scheduler of diffusers with velocity prediction; it keeps the history of its steps."""

    sigmas: Tensor
    timesteps: Tensor

    def step(
        self, velocity: Tensor, timestep: Tensor, x: Tensor, *, return_dict: bool
    ) -> tuple[Tensor]: ...


# DPM-Solver++, arXiv:2211.01095: one forward pass a step
@register_solver
def dpm_solver(
    levels: Tensor,
    *,
    # Shift of the solver's own levels; null: those of dynamics/schedule.
    shift: Shift | None = None,
    # Order of the method: network outputs that a step combines.
    order: Annotated[int, between(1, 3)] = 2,
) -> Solver:
    """Multistep DPM-Solver++, arXiv:2211.01095: one call per step.

    levels: [steps + 1] of the schedule. `shift`: of the solver's own levels, used instead.
    """
    from diffusers import DPMSolverMultistepScheduler

    return _multistep(DPMSolverMultistepScheduler, levels, shift, order)


# UniPC, arXiv:2302.04867: one forward pass a step
@register_solver
def unipc(
    levels: Tensor,
    *,
    # Shift of the solver's own levels; null: those of dynamics/schedule.
    shift: Shift | None = None,
    # Order of the method: network outputs that a step combines.
    order: Annotated[int, at_least(1)] = 2,
) -> Solver:
    """UniPC, arXiv:2302.04867: one call per step, which also corrects the previous step.

    levels: [steps + 1] of the schedule. `shift`: of the solver's own levels, used instead.
    """
    from diffusers import UniPCMultistepScheduler

    return _multistep(UniPCMultistepScheduler, levels, shift, order)


def _multistep(kind: type, levels: Tensor, shift: float | None, order: int) -> Solver:
    scheduler = kind(
        solver_order=order,
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=shift or 1.0,
    )
    return set_levels(scheduler, levels, own=shift is not None)


# Heun's trapezoid: two forward passes a step
@register_solver
def heun(
    levels: Tensor,
    *,
    # Shift of the solver's own levels, whose last step is tiny; null: those of dynamics/schedule.
    shift: Shift | None = 3.0,
) -> Solver:
    """Heun's method: two calls per step, and one for the last, which is tiny with its own levels.

    levels: [steps + 1] of the schedule. `shift`: of the solver's own levels, used instead.
    """
    from diffusers import FlowMatchHeunDiscreteScheduler

    scheduler = FlowMatchHeunDiscreteScheduler(shift=shift or 1.0)
    return set_levels(scheduler, levels, own=shift is not None)


def set_levels(scheduler: Solver, levels: Tensor, *, own: bool) -> Solver:
    """The scheduler, set to these levels [steps + 1], or to as many of its `own`."""
    scheduler.set_timesteps(len(levels) - 1)
    if not own:
        # A step of several calls has one level per call.
        _, places = scheduler.sigmas.unique_consecutive(return_inverse=True)
        scheduler.sigmas = levels.cpu().clamp(max=BELOW_ONE)[places]
        calls = len(scheduler.timesteps)
        scheduler.timesteps = scheduler.config.num_train_timesteps * scheduler.sigmas[:calls]
    return scheduler


def noise_levels(build: Callable[[Tensor], Solver], levels: Tensor) -> Tensor:
    """The noise levels of a solver's steps, from noise to 0, given those of the schedule:
    [steps + 1] of both. `solve` also uses the levels of the calls within a step."""
    taken = build(levels).sigmas.float().unique_consecutive()
    assert len(taken) == len(levels)
    return taken


@torch.no_grad()
def solve(
    velocity: Callable[[Tensor, Tensor], Tensor],
    start: Tensor,
    build: Callable[[Tensor], Solver],
    levels: Tensor,
) -> Tensor:
    """From noise [N, ...] to data, in float32. velocity: (x, sigma [N]) -> [N, ...]; levels:
    [steps + 1] of the schedule."""
    solver = build(levels)
    # `sigmas` are exact; some schedulers round their timesteps to integers.
    sigmas = solver.sigmas[: len(solver.timesteps)].to(start)
    x = start
    for level, timestep in zip(sigmas, solver.timesteps, strict=True):
        x = solver.step(velocity(x, level.expand(len(x))), timestep, x, return_dict=False)[0]
    return x
