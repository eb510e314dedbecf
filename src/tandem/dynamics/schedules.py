"""The noise levels of a rollout: (steps, tokens, *, numbers) -> sigma [steps + 1], from 1 to 0.

tokens: of one picture, as the transformer sees it; only the dynamic shifts use it.
shift > 1 moves the levels toward noise. Elsewhere "N steps, shift 3" can mean several of these.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor

from tandem.contracts import positive, register_noise_schedule


def find_fault(levels: Tensor, steps: int) -> str | None:
    """What the noise levels are, unless they fall from 1 to 0: [steps + 1]."""
    falling = levels.shape == (steps + 1,) and bool((levels.diff() < 0).all())
    if falling and (levels[0], levels[-1]) == (1, 0):
        return None
    return (
        f"the noise levels {[round(x, 4) for x in levels.flatten().tolist()]}, not {steps + 1} "
        "(steps + 1) that fall strictly from 1 to exactly 0; correct the function or its numbers"
    )


@register_noise_schedule
def linear_shift(
    steps: int,
    tokens: int,
    *,
    shift: Annotated[float, positive] = 3.0,  # shift of the levels; above 1: toward noise, 1: none
) -> Tensor:
    """Evenly spaced levels, shifted once: DanceGRPO, MixGRPO, Flow-Factory.

    Shape: [steps + 1]. Source: Stable Diffusion 3, arXiv:2403.03206.
    """
    return _shift([1 - step / steps for step in range(steps)], shift)


# Levels shifted twice, with a tiny last step: diffusers, Flow-GRPO on Stable Diffusion 3
@register_noise_schedule
def diffusers_default(
    steps: int,
    tokens: int,
    *,
    shift: Annotated[float, positive] = 3.0,  # shift of the levels; above 1: toward noise, 1: none
    # Steps of the training schedule, whose lowest level is the last one here.
    train_steps: Annotated[int, positive] = 1000,
) -> Tensor:
    """diffusers' FlowMatchEulerDiscreteScheduler without given sigmas: Flow-GRPO on SD3.

    The lowest level is that of a schedule of `train_steps`, so the last step is tiny, and the
    levels in between are shifted twice. Shape: [steps + 1]. Source: diffusers'
    FlowMatchEulerDiscreteScheduler.
    """
    lowest = torch.tensor(1 / train_steps, dtype=torch.float32)
    lowest = (shift * lowest / (1 + (shift - 1) * lowest)).item()  # in float32, as there
    # The same order of operations, for equal bits.
    spacing = (train_steps * lowest - train_steps) / max(1, steps - 1)
    times = [train_steps + step * spacing for step in range(steps)]
    if steps > 1:
        times[-1] = train_steps * lowest
    return _shift([time / train_steps for time in times], shift)


# Levels shifted by the size of the image: e^mu, as in FLUX.1 and Qwen-Image
@register_noise_schedule
def exponential_dynamic_shift(
    steps: int,
    tokens: int,
    *,
    base_tokens: int = 256,  # tokens of an image whose mu is base_shift
    base_shift: float = 0.5,  # mu of an image of base_tokens; the shift is e^mu
    max_tokens: int = 4096,  # tokens of an image whose mu is max_shift
    max_shift: float = 1.15,  # mu of an image of max_tokens
    # Level at which the last step starts; null: as the shift gives it.
    terminal: float | None = None,
) -> Tensor:
    """linear_shift by e^mu, mu on the line through (base_tokens, base_shift) and the same of max.

    As in FLUX.1 and Qwen-Image: a larger picture needs more noise to be hidden. `terminal`: the
    level at which the last step starts; the others are stretched with it. Shape: [steps + 1].
    Source: diffusers' time_shift_type=exponential.
    """
    mu = _interpolate(tokens, base_tokens, base_shift, max_tokens, max_shift)
    levels = linear_shift(steps, tokens, shift=math.exp(mu))
    return levels if terminal is None else _stretch(levels, terminal)


# Levels shifted by the size of the image: mu itself, diffusers' time_shift_type=linear
@register_noise_schedule
def linear_dynamic_shift(
    steps: int,
    tokens: int,
    *,
    base_tokens: int = 256,  # tokens of an image whose mu is base_shift
    base_shift: float = 0.5,  # mu of an image of base_tokens; the shift is mu itself
    max_tokens: int = 4096,  # tokens of an image whose mu is max_shift
    max_shift: float = 1.15,  # mu of an image of max_tokens
) -> Tensor:
    """linear_shift by mu itself: diffusers' time_shift_type="linear".

    Shape: [steps + 1]. Source: diffusers' FlowMatchEulerDiscreteScheduler.
    """
    mu = _interpolate(tokens, base_tokens, base_shift, max_tokens, max_shift)
    return linear_shift(steps, tokens, shift=mu)


# Levels shifted by the size of the image and the number of steps: FLUX.2, its distillations
@register_noise_schedule
def flux2(steps: int, tokens: int) -> Tensor:
    """linear_shift by e^mu, mu from `flux2_shift`.

    Shape: [steps + 1]. Source: diffusers' Flux2Pipeline.
    """
    return linear_shift(steps, tokens, shift=math.exp(flux2_shift(steps, tokens)))


def flux2_shift(steps: int, tokens: int) -> float:
    """The mu of FLUX.2: linear in the tokens for 10 and for 200 steps, interpolated linearly in the
    steps; above 4300 tokens, that of 200 steps.

    Source: `compute_empirical_mu` of diffusers' Flux2Pipeline.
    """
    many = 0.00016927 * tokens + 0.45666666
    few = 8.73809524e-05 * tokens + 1.89833333
    return many if tokens > 4300 else many + (many - few) / 190 * (steps - 200)


def _interpolate(x: float, x1: float, y1: float, x2: float, y2: float) -> float:
    return y1 + (y2 - y1) / (x2 - x1) * (x - x1)


def _stretch(levels: Tensor, terminal: float) -> Tensor:
    """Keep 1 and 0 and scale the distances from 1 of all levels in between."""
    if not 0 < terminal < 1 or len(levels) < 3:
        raise ValueError(
            f"terminal={terminal:g} with {len(levels) - 1} steps; it must lie in (0, 1), and needs "
            "at least 2 steps"
        )
    between = 1 - (1 - levels[:-1].double()) * (1 - terminal) / (1 - levels[-2].double())
    return torch.cat([between, levels.new_zeros(1).double()]).float()


def _shift(levels: list[float], shift: float) -> Tensor:
    """shift u / (1 + (shift - 1) u) of each level, and 0 at the end."""
    if not levels or shift <= 0:
        raise ValueError(
            f"a schedule of {len(levels)} steps with shift {shift:g}: it needs at least 1 step and "
            "a shift above 0"
        )
    shifted = [shift * level / (1 + (shift - 1) * level) for level in levels]
    return torch.tensor([*shifted, 0.0], dtype=torch.float64).float()
