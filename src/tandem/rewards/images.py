"""Rewards of pictures computed from pixels alone, and the diversity of pictures.

A picture is uint8 [H, W, 3].
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from tandem.contracts import positive, register_reward
from tandem.metrics import Sum
from tandem.rewards.films import MEASURED, select_frames
from tandem.rewards.signature import batched
from tandem.types import Prompt, is_film


@register_reward(judges="pictures")
def jpeg_compressibility(
    output: Tensor,
    prompt: Prompt,
    *,
    quality: int = 95,  # quality of the JPEG, 1 to 95
) -> float:
    """Minus the size as a JPEG, in kB (1000 bytes): smooth pictures score high.

    Source: DDPO, arXiv:2305.13301. `output`: uint8 [H, W, 3]. `quality`: of the
    JPEG, from 1 to 95.
    """
    return -jpeg_size(output, quality)


@register_reward(judges="pictures")
def jpeg_incompressibility(
    output: Tensor,
    prompt: Prompt,
    *,
    quality: int = 95,  # quality of the JPEG, 1 to 95
) -> float:
    """The size as a JPEG, in kB (1000 bytes): rich pictures score high.

    Source: DDPO, arXiv:2305.13301. `output`: uint8 [H, W, 3]. `quality`: of the
    JPEG, from 1 to 95.
    """
    return jpeg_size(output, quality)


def jpeg_size(picture: Tensor, quality: int) -> float:
    """kB (1000 bytes), headers included. `picture`: uint8 [H, W, 3]."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels(picture).numpy()).save(file, format="JPEG", quality=quality)
    return file.tell() / 1000


@register_reward(judges="pictures")
def colour_share(
    output: Tensor,
    prompt: Prompt,
    *,
    # Red, green and blue of each colour, 0 to 255, by name.
    palette: Mapping[str, tuple[int, int, int]],
) -> float | None:
    """Share of the pixels that are nearer to a colour the prompt names than to any other.

    None if it names none. A picture filled with that colour scores 1, whatever else was asked for:
    it tests that training works, not what is learnt. `output`: uint8 [H, W, 3].
    """
    words = re.findall(r"\w+", (prompt.text or "").lower())
    named = torch.tensor([name in words for name in palette])
    if not named.any():
        return None
    colours = torch.tensor(list(palette.values())).float()
    # Minus the squared distance, without the squared pixel, which is the same for all colours.
    near = 2 * pixels(output).float() @ colours.T - colours.square().sum(1)  # [H, W, colours]
    best, other = (near.masked_fill(left_out, -torch.inf).amax(-1) for left_out in (~named, named))
    return (best > other).double().mean().item()


def diversity(outputs: Sequence[Tensor], group: Tensor) -> Sum:
    """The diversity of samples: `spread` within a prompt, as a mean over prompts.

    group: [B]. A prompt with a single sample is ignored.
    """
    groups = [(group == one).nonzero()[:, 0].tolist() for one in group.unique()]
    spreads = [spread([outputs[i] for i in rows]) for rows in groups if len(rows) > 1]
    total = torch.stack(spreads).sum() if spreads else torch.zeros((), dtype=torch.float64)
    return Sum(total, torch.tensor(len(spreads)))


def spread(pictures: Sequence[Tensor]) -> Tensor:
    """The unbiased std of each pixel over pictures, or over films at the same frames, on the scale
    from -1 to 1, averaged: []. Processes one picture or film at a time."""
    count, total, squares = len(pictures), 0, 0
    for levels in (shown_pixels(picture).long() for picture in pictures):
        total, squares = total + levels, squares + levels.square()
    # Sums of integers are exact.
    variance = (count * squares - total.square()).double() / (count * (count - 1))
    return variance.sqrt().div(127.5).mean()


def shown_pixels(output: Tensor) -> Tensor:
    """A picture [H, W, 3], or the frames of a film used by measures, [F, H, W, 3], on the CPU.
    Raises ValueError for anything else."""
    if not is_film(output):
        return pixels(output)
    return torch.stack([*map(pixels, select_frames(output, MEASURED))])


def pixels(picture: Tensor) -> Tensor:
    """The picture on the CPU, uint8 [H, W, 3].

    Raises ValueError for anything else.
    """
    if not isinstance(picture, Tensor):
        raise ValueError(f"a picture is a tensor, not {type(picture).__name__}")
    if picture.dtype != torch.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        raise ValueError(
            f"a picture must be uint8 [H, W, 3], not {picture.dtype} {[*picture.shape]}"
        )
    return picture.cpu()


@batched
@register_reward(judges="pictures")
def nearest_rendering(
    outputs: Sequence[Tensor],
    prompts: Sequence[Prompt],
    *,
    renderings: Mapping[str, Tensor],  # images that show a prompt, by its answer, else its text
    smooth: float = 0.5,
    width: Annotated[float, positive] = 0.1,
    limit: float = 0.12,
) -> list[float | None]:
    """smooth exp(-mse / width) + (1 - smooth) right: 1 for an exact rendering.

    renderings: answer of a prompt, else its text -> uint8 [N, H, W, 3]. mse is the mean squared
    difference, on the scale from -1 to 1, to the closest rendering of the prompt; `right` is 1
    where no other prompt has a closer one and mse < limit, else 0. None for a prompt without
    renderings.

    With the default numbers `right` means a reward of at least 0.5; smooth=0 gives `right` itself.
    Every pixel counts, so speckle in the background costs as much as a wrong shape.
    """
    score = partial(match, smooth=smooth, width=width, limit=limit)
    return score_by_errors(outputs, prompts, renderings, score)


@batched
@register_reward(judges="pictures")
def crisp_rendering(
    outputs: Sequence[Tensor],
    prompts: Sequence[Prompt],
    *,
    renderings: Mapping[str, Tensor],  # images that show a prompt, by its answer, else its text
    margin: Annotated[float, positive] = 0.08,
    close: float = 0.06,
    limit: Annotated[float, positive] = 0.12,
) -> list[float | None]:
    """(distinct and clean shape + right) / 2: 1 for a picture as good as a rendering.

    renderings: as in `nearest_rendering`. The error is the mean squared difference over the
    variance of the rendering's pixels, which makes shapes of any size and number of channels
    comparable. `right` is 1 if the prompt's error is below `limit` and no other prompt's is
    smaller. Distinct grows from 0, if another error is smaller by `margin`, to 1, if all are larger
    by as much; clean is exp(-(error - close) / limit), and 1 below `close`.
    """
    every = torch.cat(list(renderings.values())).double() / 127.5  # [K, H, W, 3]
    variance = every.flatten(1, 2).var(1, unbiased=False).mean(1)  # [K]
    score = partial(tell_crisp, unit=variance, margin=margin, close=close, limit=limit)
    return score_by_errors(outputs, prompts, renderings, score)


def score_by_errors(
    outputs: Sequence[Tensor],
    prompts: Sequence[Prompt],
    renderings: Mapping[str, Tensor],
    score: Callable[[Tensor, Tensor], Tensor],
) -> list[float | None]:
    """`score` of the errors of each picture and the mask of the prompt's own renderings, [N, K]
    both -> [N]. None for a prompt without renderings."""
    asked = [prompt.text if prompt.answer is None else prompt.answer for prompt in prompts]
    known = [i for i, text in enumerate(asked) if text in renderings]
    scores: list[float | None] = [None] * len(outputs)
    if known:
        names = list(renderings)
        owner = torch.tensor([n for n, name in enumerate(names) for _ in renderings[name]])
        wanted = torch.tensor([names.index(asked[i]) for i in known])
        every = torch.cat(list(renderings.values()))
        given = [pixels(outputs[i]) for i in known]
        if odd := [picture for picture in given if picture.shape != every.shape[1:]]:
            own, drawn = (f"{one.shape[0]} x {one.shape[1]}" for one in (odd[0], every[0]))
            raise ValueError(f"a picture has {own} pixels, but its rendering {drawn}")
        flat = torch.stack(given).flatten(1).double()
        error = squared_errors(flat, every.flatten(1).double())
        for i, found in zip(known, score(error, owner == wanted[:, None]).tolist(), strict=True):
            scores[i] = found
    return scores


def tell_crisp(
    error: Tensor, own: Tensor, *, unit: Tensor, margin: float, close: float, limit: float
) -> Tensor:
    """`crisp_rendering` from errors, with the arguments of `match`: [N]. unit: [K] of an error."""
    error = error / unit
    least, other = (error.masked_fill(hidden, torch.inf).amin(1) for hidden in (~own, own))
    apart = ((other - least) / (2 * margin) + 0.5).clamp(0, 1)
    clean = (-(least - close).clamp(min=0) / limit).exp()
    return (apart * clean + ((least <= other) & (least < limit))) / 2


def match(error: Tensor, own: Tensor, *, smooth: float, width: float, limit: float) -> Tensor:
    """`nearest_rendering` from errors. error: [N, K] to each rendering; own: [N, K] bool, the
    prompt's renderings -> [N]"""
    mse = error.masked_fill(~own, torch.inf).amin(1)
    right = (mse <= error.amin(1)) & (mse < limit)
    return smooth * (-mse / width).exp() + (1 - smooth) * right


def squared_errors(pictures: Tensor, renderings: Tensor) -> Tensor:
    """Mean squared differences on the scale from -1 to 1: [N, D], [K, D] from 0 to 255 -> [N, K].

    Sums of squared bytes are exact in float64, so batching does not change a score.
    """
    products = pictures @ renderings.T
    lengths = pictures.square().sum(1)[:, None] + renderings.square().sum(1)
    return (lengths - 2 * products) / (pictures.shape[1] * 127.5**2)
