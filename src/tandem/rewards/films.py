"""Rewards of films: picture rewards over frames, and rewards of motion.

A film is uint8 [F, H, W, 3].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Literal

import torch
from torch import Tensor

from tandem.contracts import register_reward
from tandem.rewards.result import Verdict
from tandem.types import Prompt, is_film

SHOWN = 8  # frames of a film in a table of samples
MEASURED = 16  # frames used by the measures of evaluation


def select_frames(film: Tensor, most: int | None) -> Tensor:
    """The first and the last frame and evenly spread ones between, [most, H, W, 3]; None: all."""
    if most is None or most >= len(film):
        return film
    return film[torch.linspace(0, len(film) - 1, most).round().long()]


def lay_out_frames(film: Tensor) -> Tensor:
    """Some frames side by side, for display: [F, H, W, 3] -> [H, W * n, 3]."""
    return torch.cat([*select_frames(film, SHOWN)], dim=1)


def mean_of_positive(numbers: Sequence[float]) -> float:
    """The mean over the frames that score above 0, as in Flow-GRPO's text in videos; 0 if none
    does."""
    positive = [number for number in numbers if number > 0]
    return fmean(positive) if positive else 0.0


OfFrames = Literal["mean", "best", "positive"]
OF_FRAMES: Mapping[OfFrames, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    "best": max,
    "positive": mean_of_positive,
}


def combine_frames(verdicts: Sequence[Verdict], rule: OfFrames) -> Verdict:
    """The number of a film from those of its frames; the first reason why a frame has none."""
    missing = [verdict for verdict in verdicts if verdict[1] is not None]
    return missing[0] if missing else (OF_FRAMES[rule]([number for number, _ in verdicts]), None)


@register_reward(judges="pictures", of_films=True)
def motion_smoothness(output: Tensor, prompt: Prompt) -> float:
    """1 - mean |2 x_f - x_(f-1) - x_(f+1)| / 255: 1 for uniform motion or none.

    The mean deviation of each frame from the average of its neighbours. A still film scores 1, so
    combine it with a reward of the content. It uses no network, unlike the measure of this name in
    VBench, arXiv:2311.17982, which interpolates frames with one. `output`: uint8
    [F, H, W, 3].
    """
    if not is_film(output) or len(output) < 3:
        raise ValueError(f"motion needs a film of at least 3 frames, not {[*output.shape]}")
    levels = output.float()
    bends = 2 * levels[1:-1] - levels[:-2] - levels[2:]
    return 1 - bends.abs().mean().item() / 255
