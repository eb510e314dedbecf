"""Is it what was asked for? The picture against every picture that a right answer could be.

Every pixel counts, so that speckle in the ground costs as much as a wrong shape: a reward that
looked at the shape alone was hacked within a minute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tandem.contracts import register_reward
from tandem.rewards.images import pixels
from tandem.rewards.signature import batched
from tandem.types import Prompt


@batched
@register_reward(judges="pictures")
def nearest_rendering(
    outputs: Sequence[Tensor],
    prompts: Sequence[Prompt],
    *,
    renderings: Mapping[str, Tensor],
    smooth: float = 0.5,
    width: float = 0.1,
    limit: float = 0.12,
) -> list[float | None]:
    """smooth exp(-mse / width) + (1 - smooth) right: 1 for an exact rendering.

    renderings: text of a prompt -> uint8 [N, H, W, 3]. mse is the mean squared difference, on the
    scale from -1 to 1, to the closest rendering of the prompt; `right` is 1 where no other prompt
    has a closer one and mse < limit, else 0. None for a prompt without renderings.

    At the default numbers `right` is where the reward is at least 0.5; smooth=0 gives `right`.
    """
    known = [i for i, prompt in enumerate(prompts) if prompt.text in renderings]
    scores: list[float | None] = [None] * len(outputs)
    if known:
        names = list(renderings)
        owner = torch.tensor([n for n, name in enumerate(names) for _ in renderings[name]])
        wanted = torch.tensor([names.index(prompts[i].text) for i in known])
        every = torch.cat(list(renderings.values()))
        given = flat([outputs[i] for i in known], every[0])
        error = squared_errors(given, every.flatten(1).double())
        found = match(error, owner == wanted[:, None], smooth=smooth, width=width, limit=limit)
        for i, score in zip(known, found.tolist(), strict=True):
            scores[i] = score
    return scores


def match(error: Tensor, own: Tensor, *, smooth: float, width: float, limit: float) -> Tensor:
    """What `nearest_rendering` gives. error: [N, K] to each rendering; own: [N, K] bool, whether it
    is one of the prompt's -> [N]"""
    mse = error.masked_fill(~own, torch.inf).amin(1)
    right = (mse <= error.amin(1)) & (mse < limit)
    return smooth * (-mse / width).exp() + (1 - smooth) * right


def squared_errors(pictures: Tensor, renderings: Tensor) -> Tensor:
    """Mean squared differences on the scale from -1 to 1: [N, D], [K, D] from 0 to 255 -> [N, K].

    Sums of squares of bytes are exact in float64, so that no cut of a batch changes a score.
    """
    products = pictures @ renderings.T
    lengths = pictures.square().sum(1)[:, None] + renderings.square().sum(1)
    return (lengths - 2 * products) / (pictures.shape[1] * 127.5**2)


def flat(pictures: Sequence[Tensor], rendering: Tensor) -> Tensor:
    """[N, D] float64, for pictures of the size of a rendering."""
    for picture in pictures:
        if pixels(picture).shape != rendering.shape:
            given, wanted = (f"{one.shape[0]} x {one.shape[1]}" for one in (picture, rendering))
            raise ValueError(f"a picture is {given} pixels, but a rendering {wanted}")
    return torch.stack([pixels(picture).flatten() for picture in pictures]).double()
