"""The noise levels of a rollout: (steps, tokens, *, numbers) -> sigma [steps + 1], from 1 to 0.

tokens: of one latent picture, as the transformer sees it; only the dynamic shifts read it.
shift > 1 moves the levels toward noise. Several of these go by "N steps, shift 3" elsewhere.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor

from tandem.contracts import positive, register_noise_schedule


@register_noise_schedule
def linear_shift(
    steps: int,
    tokens: int,
    *,
    shift: Annotated[float, positive] = 3.0,  # above 1 moves the levels toward noise, 1 leaves them
) -> Tensor:
    """Levels at equal distances, shifted once: DanceGRPO, MixGRPO, Flow-Factory.

    Shape: [steps + 1]. Source: Stable Diffusion 3, arXiv:2403.03206.
    """
    return _shift([1 - step / steps for step in range(steps)], shift)


# What diffusers does on Stable Diffusion 3, Flow-GRPO too: shifted twice, a tiny last step
@register_noise_schedule
def diffusers_default(
    steps: int,
    tokens: int,
    *,
    shift: Annotated[float, positive] = 3.0,  # above 1 moves the levels toward noise
    train_steps: Annotated[
        int, positive
    ] = 1000,  # of the schedule whose lowest level is the last one
) -> Tensor:
    """diffusers' FlowMatchEulerDiscreteScheduler if it is given no sigmas: Flow-GRPO on SD3.

    The lowest level is that of a schedule of `train_steps`, so the last step is tiny, and the
    levels between are shifted a second time. Shape: [steps + 1]. Source: diffusers'
    FlowMatchEulerDiscreteScheduler.
    """
    lowest = torch.tensor(1 / train_steps, dtype=torch.float32)
    lowest = (shift * lowest / (1 + (shift - 1) * lowest)).item()  # in float32, as there
    # In its order of operations too: the same bits.
    spacing = (train_steps * lowest - train_steps) / max(1, steps - 1)
    times = [train_steps + step * spacing for step in range(steps)]
    if steps > 1:
        times[-1] = train_steps * lowest
    return _shift([time / train_steps for time in times], shift)


# Shifted by the size of the picture: e^mu, as Flux and its kin do
@register_noise_schedule
def exponential_dynamic_shift(
    steps: int,
    tokens: int,
    *,
    base_tokens: int = 256,  # of a picture whose mu is base_shift
    base_shift: float = 0.5,
    max_tokens: int = 4096,  # and of one whose mu is max_shift
    max_shift: float = 1.15,
    terminal: float
    | None = None,  # the level that the last step starts from; null: as the shift has it
) -> Tensor:
    """linear_shift by e^mu, mu on the line through (base_tokens, base_shift) and the same of max.

    What Flux and its kin do: the larger the picture, the more noise it takes to hide it.
    `terminal`: the level that the last step starts from, all others being stretched with it. Shape:
    [steps + 1]. Source: diffusers' time_shift_type=exponential.
    """
    mu = _interpolate(tokens, base_tokens, base_shift, max_tokens, max_shift)
    levels = linear_shift(steps, tokens, shift=math.exp(mu))
    return levels if terminal is None else _stretch(levels, terminal)


# Shifted by the size of the picture: mu itself, diffusers' time_shift_type=linear
@register_noise_schedule
def linear_dynamic_shift(
    steps: int,
    tokens: int,
    *,
    base_tokens: int = 256,  # of a picture whose mu is base_shift
    base_shift: float = 0.5,
    max_tokens: int = 4096,  # and of one whose mu is max_shift
    max_shift: float = 1.15,
) -> Tensor:
    """linear_shift by mu itself: diffusers' time_shift_type="linear".

    Shape: [steps + 1]. Source: diffusers' FlowMatchEulerDiscreteScheduler.
    """
    mu = _interpolate(tokens, base_tokens, base_shift, max_tokens, max_shift)
    return linear_shift(steps, tokens, shift=mu)


# Shifted by the size of the picture and the number of steps: FLUX.2 and its distillations
@register_noise_schedule
def flux2(steps: int, tokens: int) -> Tensor:
    """linear_shift by e^mu, mu as `flux2_shift` has it.

    Shape: [steps + 1]. Source: diffusers' Flux2Pipeline.
    """
    return linear_shift(steps, tokens, shift=math.exp(flux2_shift(steps, tokens)))


def flux2_shift(steps: int, tokens: int) -> float:
    """The mu of FLUX.2: a line in the tokens for 10 steps and one for 200, and between them on the
    line in the steps; of more than 4300 tokens that of 200 steps.

    Source: `compute_empirical_mu` of diffusers' Flux2Pipeline.
    """
    many = 0.00016927 * tokens + 0.45666666
    few = 8.73809524e-05 * tokens + 1.89833333
    return many if tokens > 4300 else many + (many - few) / 190 * (steps - 200)


def _interpolate(x: float, x1: float, y1: float, x2: float, y2: float) -> float:
    return y1 + (y2 - y1) / (x2 - x1) * (x - x1)


def _stretch(levels: Tensor, terminal: float) -> Tensor:
    """1 and 0 stay where they are, and the distances from 1 of all between grow alike."""
    if not 0 < terminal < 1 or len(levels) < 3:
        raise ValueError(
            "the level that the last step starts from lies in (0, 1), and needs a step before it; "
            f"got terminal={terminal:g} of {len(levels) - 1} steps"
        )
    between = 1 - (1 - levels[:-1].double()) * (1 - terminal) / (1 - levels[-2].double())
    return torch.cat([between, levels.new_zeros(1).double()]).float()


def _shift(levels: list[float], shift: float) -> Tensor:
    """shift u / (1 + (shift - 1) u) of each level, and 0 at the end."""
    if not levels or shift <= 0:
        raise ValueError(
            f"a schedule needs at least 1 step and a shift above 0, got {len(levels)} and {shift:g}"
        )
    shifted = [shift * level / (1 + (shift - 1) * level) for level in levels]
    return torch.tensor([*shifted, 0.0], dtype=torch.float64).float()
