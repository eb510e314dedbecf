"""Stochastic steps of a rollout: (steps, iteration, seed, *, numbers) -> step indices.

All other steps follow the ODE, and the last one always does: its noise would stay in the sample.
All samples of an iteration have the same stochastic steps, a function of seed and iteration only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Annotated

from tandem.contracts import positive, register_stochastic_steps, register_window_pace
from tandem.rng import key, permutation, uniform

Indices = tuple[int, ...]  # ascending, in [0, steps - 2]
Stay = Callable[[int, int], int]  # (start of the window, steps) -> iterations


# All steps but the last: Flow-GRPO, DanceGRPO
@register_stochastic_steps
def every_step(steps: int, iteration: int, seed: int) -> Indices:
    """All but the last: Flow-GRPO, DanceGRPO. Source: Flow-GRPO, arXiv:2505.05470."""
    return tuple(range(_before_last(steps)))


@register_stochastic_steps
def one_step(
    steps: int,
    iteration: int,
    seed: int,
    *,
    step: int,  # number of the stochastic step, from 0
) -> Indices:
    """Only the step `step`, in every iteration.

    Raises ValueError for a step that the rollout does not have. Tandem's own.
    """
    if not 0 <= step < _before_last(steps):
        raise ValueError(f"step={step} cannot be stochastic; choose 0 to {steps - 2}")
    return (step,)


# num_sde_steps of the candidates sde_steps, drawn in each iteration
@register_stochastic_steps
def random_steps(
    steps: int,
    iteration: int,
    seed: int,
    *,
    # Steps that may be stochastic, such as [1, 2, 3]; null: all but the last.
    sde_steps: Sequence[int] | None = None,
    num_sde_steps: int = 1,  # stochastic steps of an iteration
) -> Indices:
    """num_sde_steps of the candidates sde_steps (None: all but the last), drawn per iteration.

    Raises ValueError for more steps than candidates. Source: Flow-Factory.
    """
    candidates = range(_before_last(steps)) if sde_steps is None else sorted(set(sde_steps))
    if not all(0 <= step < _before_last(steps) for step in candidates):
        raise ValueError(
            f"sde_steps={list(candidates)}: of {steps} steps only 0 to {steps - 2} can be "
            "stochastic; the last one follows the ODE"
        )
    if not 1 <= num_sde_steps <= len(candidates):
        raise ValueError(
            f"num_sde_steps={num_sde_steps} must be from 1 to {len(candidates)}, the number of "
            "candidates"
        )
    order = permutation(key(seed, "stochastic steps", iteration), len(candidates)).tolist()
    return tuple(sorted(candidates[place] for place in order[:num_sde_steps]))


# Consecutive steps from anywhere in the rollout: MixGRPO's random strategy, Flow-GRPO-fast
@register_stochastic_steps
def random_window(
    steps: int,
    iteration: int,
    seed: int,
    *,
    length: int = 4,  # stochastic steps of a window; Flow-GRPO-fast: 3, in the first half
    share: float = 1.0,  # share of the rollout, from its start, in which a window may start
) -> Indices:
    """`length` consecutive steps, starting in the first `share` of the rollout, per iteration.

    share=1 is MixGRPO's random strategy; length=3, share=0.5 is Flow-GRPO-fast. Raises ValueError
    for a share outside (0, 1]. Source: MixGRPO, arXiv:2507.21802.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share={share:g} must be above 0 and at most 1, a part of the rollout")
    starts = min(_starts(steps, length), math.ceil(share * steps))
    drawn = uniform(key(seed, "stochastic steps", iteration), (1,)).item()
    return _window(int(drawn * starts), length)


# A window stays equally long everywhere
@register_window_pace
def even(
    start: int,
    steps: int,
    *,
    iterations: Annotated[int, positive] = 25,  # iterations that a window stays
) -> int:
    """How many iterations a window stays at `start`: the same everywhere.

    Source: MixGRPO, arXiv:2507.21802.
    """
    return iterations


# A window stays linearly shorter toward data: MixGRPO's decay
@register_window_pace
def linearly_fewer(
    start: int,
    steps: int,
    *,
    iterations: Annotated[int, positive] = 25,  # iterations that a window stays at the first step
    least: Annotated[int, positive] = 6,  # iterations that a window stays at the last step
) -> int:
    """Linear from `iterations` at the first step to `least` at the last stochastic one.

    Tandem's own reading of MixGRPO's decay (arXiv:2507.21802).
    """
    return int(iterations + (least - iterations) * start / max(1, steps - 2))


# A window stays exponentially shorter from some step on: MixGRPO's exp_decay
@register_window_pace
def exponentially_fewer(
    start: int,
    steps: int,
    *,
    iterations: Annotated[int, positive] = 25,  # iterations that a window stays at first
    after: int = 13,  # step from which a window stays shorter
    rate: float = 0.1,  # rate of the decay per step: a factor e^-rate
) -> int:
    """`iterations` up to the step `after`, then a factor e^-rate per step, at least 1.

    Source: MixGRPO, arXiv:2507.21802.
    """
    return math.ceil(iterations * math.exp(-rate * max(0, start - after)))


@register_stochastic_steps
def sliding_window(
    steps: int,
    iteration: int,
    seed: int,
    *,
    stay: Stay = even,  # iterations that a window stays at a step
    length: int = 4,  # stochastic steps of a window
    stride: Annotated[int, positive] = 1,  # steps by which the window moves
    roll_back: bool = True,  # true: starts again at the end; false: stays there
) -> Indices:
    """`length` consecutive steps that move by `stride` after each stay (arXiv:2507.21802).

    The window moves from noise to data, then starts again (roll_back) or remains. MixGRPO's `decay`
    and `exp_decay` are stay=linearly_fewer and stay=exponentially_fewer. Every window is whole: the
    published code continues into shorter ones and skips the step before the last.
    """
    starts = range(0, _starts(steps, length), stride)
    left_at = list(itertools.accumulate(stay(start, steps) for start in starts))
    if roll_back:
        iteration %= left_at[-1]
    passed = sum(iteration >= left for left in left_at[:-1])
    return _window(starts[passed], length)


def _before_last(steps: int) -> int:
    """The number of steps that can be stochastic."""
    if steps < 2:
        raise ValueError(
            f"a rollout of {steps} step has no stochastic step, because the last one follows the "
            "ODE; use 2 steps or more"
        )
    return steps - 1


def _starts(steps: int, length: int) -> int:
    """The number of steps at which a window of this length can start."""
    starts = _before_last(steps) - length + 1
    if length < 1 or starts < 1:
        raise ValueError(
            f"a window of {length} steps does not fit before the last of {steps} steps; "
            f"choose a length of 1 to {steps - 1}"
        )
    return starts


def _window(start: int, length: int) -> Indices:
    return tuple(range(start, start + length))
