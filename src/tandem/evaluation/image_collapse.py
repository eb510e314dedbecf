"""Measures of image collapse: the drift of pictures, and when it makes a reward suspect.

A picture is uint8 [..., H, W, 3]; a measure of one is [...] float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

from tandem.contracts import at_least

if TYPE_CHECKING:
    from torch import Tensor

DARK = 32  # of 256 levels: a pixel whose channels are below on average is dark
BOXES = 4  # per channel of the colour histogram
STEEP = 64  # of 256 levels between neighbours; residual noise stays below

REWARD, DISTANCE = "eval/reward", "eval/distance_to_start"
FALLING = ("diversity", "colour_entropy", "edge_density")


def dark(pictures: Tensor) -> Tensor:
    """Share of the pixels whose mean over channels is below an eighth of the range.

    Not the luma, which is low for a saturated blue that is not dark. Shape: [B, H, W, 3]
    -> [B].
    """
    return (pictures.long().sum(-1) < 3 * DARK).double().mean((-2, -1))


def colour_entropy(pictures: Tensor) -> Tensor:
    """Entropy of the colours of a picture in 4 x 4 x 4 bins, nats: from 0 for a single colour to
    ln 64.

    Shape: [B, H, W, 3] -> [B].
    """
    import torch

    red, green, blue = (pictures.long() * BOXES // 256).unbind(-1)
    box = ((red * BOXES + green) * BOXES + blue).flatten(-2)  # [..., H * W]
    rows = box.view(-1, box.shape[-1])
    counts = torch.zeros(len(rows), BOXES**3, dtype=torch.float64)
    counts.scatter_add_(1, rows, torch.ones(rows.shape, dtype=torch.float64))
    return torch.special.entr(counts / box.shape[-1]).sum(1).view(box.shape[:-1])


def edge_density(pictures: Tensor) -> Tensor:
    """Share of the pixels that differ from the one below or to the right by at least a quarter of
    the range in some channel: 0 for a blank picture.

    Shape: [B, H, W, 3] -> [B].
    """
    import torch

    levels = pictures.short()
    edges = torch.zeros(levels.shape[:-1], dtype=torch.bool)
    edges[..., :-1, :] |= (levels.diff(dim=-3).abs() >= STEEP).any(-1)
    edges[..., :, :-1] |= (levels.diff(dim=-2).abs() >= STEEP).any(-1)
    return edges.double().mean((-2, -1))


Share = Annotated[float, at_least(0)]
MEASURES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "dark": dark,
    "colour_entropy": colour_entropy,
    "edge_density": edge_density,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Collapse:
    """Limits on the drift of pictures, beyond which a rising reward is suspect.

    None: the measure is ignored.
    """

    diversity: Share | None = 0.2  # share of its first value below which it warns; null: never
    colour_entropy: Share | None = 0.5  # share of its first value below which it warns; null: never
    edge_density: Share | None = 0.4  # share of its first value below which it warns; null: never
    # Change of the share of dark pixels, up or down, that warns; null: never.
    dark: Share | None = 0.25
    # Distance from the first images, in units of their diversity, that warns.
    distance: Share | None = 3.0

    def warning(self, first: Mapping[str, float], now: Mapping[str, float]) -> str | None:
        """The warning about an evaluation relative to the first of the run; None: no suspicion.

        Both are metrics by name; a missing, None or NaN value is never suspect.
        """
        signs = self.signs(first, now)
        said = "pictures collapsed", "look at the pictures", "evaluation.collapse"
        return describe_suspicion(first, now, signs, said=said)

    def signs(self, first: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
        """Sentences on the measures beyond their limits."""
        found = []
        for name in FALLING:
            limit, ends = asdict(self)[name], compare_both(f"eval/{name}", first, now)
            if None not in (limit, ends) and ends[1] < limit * ends[0]:
                found.append(describe_ends(name, ends))
        ends = compare_both("eval/dark", first, now)
        if None not in (self.dark, ends) and abs(ends[1] - ends[0]) > self.dark:
            found.append(describe_ends("share of dark pixels", ends))
        unit, gone = first.get("eval/diversity"), now.get(DISTANCE)
        if None not in (self.distance, unit, gone) and gone > self.distance * unit > 0:
            found.append(f"distance to the start {gone:.3f} at a first diversity of {unit:.3f}")
        return found


def describe_suspicion(
    first: Mapping[str, float],
    now: Mapping[str, float],
    signs: Sequence[str],
    *,
    said: tuple[str, str, str],
) -> str | None:
    """One line if there are signs of drift while the held-out reward rose; else None.

    said: the change of the samples, the advice, and the key of the limits.
    """
    reward = compare_both(REWARD, first, now)
    if not signs or reward is None or not reward[1] > reward[0]:
        return None
    happened, advice, key = said
    return (
        f"the held-out reward rose from {reward[0]:.3f} to {reward[1]:.3f} while {happened}: "
        f"{', '.join(signs)}; {advice}, and hold the policy to its start by a larger "
        f"algorithm.kl.coef (limits: {key})"
    )


def compare_both(
    name: str, first: Mapping[str, float], now: Mapping[str, float]
) -> tuple[float, float] | None:
    """The metric in both, if both are finite; else None."""
    ends = first.get(name), now.get(name)
    return None if None in ends or not all(map(math.isfinite, ends)) else ends


def describe_ends(name: str, ends: Sequence[float]) -> str:
    """For example "colour entropy 1.200 -> 0.300"."""
    return f"{name.replace('_', ' ')} {ends[0]:.3f} -> {ends[1]:.3f}"
