"""Masked states at which the log-probabilities of an answer are evaluated.

`path` replays those of the sampler: its values are log-probabilities of the steps that were taken.
The others draw states of their own, keyed by row, so that the live policy, the old one and the
reference are evaluated at the same states. Their values are token values, or a bound on log p of
the answer, split over its positions.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from tandem import rng
from tandem.contracts import above, between, fraction, positive, register_answer_likelihood
from tandem.policies.masked.records import HiddenRows, States, Trailing

Masks = Literal["independent", "counted", "coupled"]
OfSteps = Literal["counted", "shown"]  # not `hidden`: the sampler saw those positions
positive_share = between(0, 1, open_low=True)
inner_share = between(0, 1, open_low=True, open_high=True)


# The step that wrote each token, replayed exactly
@register_answer_likelihood(reads={"when"}, replays=True)
def path(
    rows: HiddenRows,
    *,
    trailing: OfSteps = "shown",  # positions after the end; counted: scored as well
) -> States:
    """ℓ_i in the state in which position i was written: log p of the sampler's steps.
    `trailing`: counted scores positions after the end as well; shown only shows them."""
    return replay_states(rows, rows.when)


# Successive steps in one pass, each token from the state that the first of them began with
@register_answer_likelihood(reads={"when"}, noiseless=True, essential=True)
def merged_path(
    rows: HiddenRows,
    *,
    shrink: Annotated[int, positive] = 8,  # successive steps of the sampler that are one pass
    trailing: OfSteps = "shown",  # positions after the end; counted: scored as well
) -> States:
    """`shrink` successive steps are one pass (TraceRL, arXiv:2509.06949).
    `trailing`: counted scores positions after the end as well; shown only shows them."""
    return replay_states(rows, merge_steps(rows.when, shrink))


def merge_steps(when: Tensor, shrink: int) -> Tensor:
    """The first step in each position's run of `shrink` distinct steps of its row: [B, L]."""
    earlier = when[:, None, :] < when[:, :, None]
    # Of the positions that one step wrote, the first counts the step.
    same = when[:, None, :] == when[:, :, None]
    first = ~torch.tril(same, diagonal=-1).any(-1)
    rank = (earlier & first[:, None, :]).sum(-1)
    group = rank // shrink
    together = group[:, None, :] == group[:, :, None]
    return torch.where(together, when[:, None, :], when.max() + 1).amin(-1)


def replay_states(rows: HiddenRows, read: Tensor) -> States:
    """One state for each step of a row that `read` [B, L] names."""
    width = int(read.max()) + 1
    row, position = rows.free.nonzero(as_tuple=True)
    both = (row * width + read[row, position]).unique()
    row, step = both // width, both % width
    scored = rows.free[row] & (read[row] == step[:, None])
    return States(row=row, hidden=rows.when[row] >= step[:, None], weight=scored.double(), count=1)


# A bound on log p of the whole answer, split over its positions, at random states
@register_answer_likelihood(
    splits_bound=True,
    read_with={
        "levels": ("masks", "counted"),
        "weighted": ("masks", "coupled"),
        "least": ("masks", "independent"),
    },
)
def elbo(
    rows: HiddenRows,
    *,
    # Masks of a state: independent, counted, or coupled: each with its complement, in a second
    # pass.
    masks: Masks = "coupled",
    states: Annotated[int, positive] = 1,  # levels of a row, each with one mask
    # Levels of the states: stratified, or gauss: fixed nodes with counted masks.
    levels: Literal["stratified", "gauss"] = "stratified",
    # true: the bound's weights; false: the plain mean over states, with coupled masks only.
    weighted: bool = True,
    # Smallest level of independent masks; null: 1 / L.
    least: Annotated[float, positive_share] | None = None,
    trailing: Trailing = "hidden",  # positions after the end; counted: scored as well
    p_mask_prompt: Annotated[float, fraction] = 0.0,  # share of prompt tokens that are hidden
    beta: Annotated[float, above(0)] = 1.5,  # exponent of the upper bound, for losses that read it
) -> States:
    """c_i, whose sum is a bound on log p of the answer: the mean over states of w ℓ_i where i is
    hidden, w = 1 / t (independent), L / n (counted) or (L + 1) / 2n (coupled).

    Sources: LLaDA, arXiv:2502.09992; ESPO, arXiv:2512.03759; GDPO, arXiv:2510.08554 (gauss).
    """
    size = rows.free.sum(1)[:, None]  # [B, 1] L, the positions that may be hidden
    noise = rng.uniform(rng.key(rows.key, "masks"), (states, rows.free.shape[1]))
    if levels == "gauss":
        hidden, weight = hide_at_nodes(rows.free, noise, *gauss_levels(states, noise.device))
    else:
        level = spread_levels(rows, states)
        hidden, weight = MASKS[masks](rows.free, noise, level, size, least)
    if not weighted:
        weight = 2.0 * hidden / hidden.shape[1]
    return make_states(rows, hidden, weight, trailing=trailing, p_mask_prompt=p_mask_prompt)


# The whole answer hidden, in one pass (diffu-GRPO)
@register_answer_likelihood(essential=True)
def one_step(
    rows: HiddenRows,
    *,
    trailing: Trailing = "hidden",  # positions after the end; counted: scored as well
    p_mask_prompt: Annotated[float, fraction] = 0.15,  # share of prompt tokens that are hidden
) -> States:
    """ℓ_i with the whole answer hidden: a token value, arXiv:2504.12216."""
    hidden = rows.free[:, None]
    weight = hidden.double()
    return make_states(rows, hidden, weight, trailing=trailing, p_mask_prompt=p_mask_prompt)


# A mask, its complement, and everything hidden, in three passes (coupled-GRPO)
@register_answer_likelihood(essential=True)
def coupled_tokens(
    rows: HiddenRows,
    *,
    # Smallest share of the answer that the drawn mask hides.
    low: Annotated[float, inner_share] = 0.2,
    # Largest share of the answer that the drawn mask hides.
    high: Annotated[float, inner_share] = 0.8,
    trailing: Trailing = "hidden",  # positions after the end; counted: scored as well
    p_mask_prompt: Annotated[float, fraction] = 0.0,  # share of prompt tokens that are hidden
) -> States:
    """(ℓ_i with all hidden + ℓ_i of its own pass / its level) / 2, the level between `low` and
    `high`: a token value, not a bound. Source: DiffuCoder, arXiv:2506.20639."""
    level = low + (high - low) * rng.uniform(rng.key(rows.stratum, "levels"))[:, None]
    noise = rng.uniform(rng.key(rows.key, "masks"), (rows.free.shape[1],))
    mask = rows.free & (noise < level)
    hidden = torch.stack([rows.free, mask, rows.free & ~mask], 1)
    ones = torch.ones_like(level)
    weight = hidden / torch.stack([ones, level, 1 - level], 1) / 2
    return make_states(rows, hidden, weight, trailing=trailing, p_mask_prompt=p_mask_prompt)


def spread_levels(rows: HiddenRows, states: int) -> Tensor:
    """Levels in [0, 1), evenly spread over the states of a row and the rows of a stratum, [B, N].

    They depend on the stratum and the row's place in it, never on the other rows of a pass.
    """
    offset = rng.uniform(rng.key(rows.stratum, "levels"))
    base = (rows.place + offset).frac()[:, None]
    return (base + torch.arange(states, device=base.device)) / states


def counts_of(level: Tensor, most: Tensor | int) -> Tensor:
    """The count in 0 to `most` that a level in [0, 1) maps to, uniformly: int64 (ESPO)."""
    return (level * (most + 1)).round().remainder(most + 1).long()


def hide_independently(
    free: Tensor, noise: Tensor, level: Tensor, size: Tensor, least: float | None
) -> tuple[Tensor, Tensor]:
    """Each position independently, with the level as its probability; w = 1 / t."""
    lowest = 1 / size.clamp(min=1) if least is None else least
    level = ((1 - lowest) * level + lowest)[..., None]
    hidden = free[:, None] & (noise < level)
    return hidden, hidden / level / noise.shape[1]


def hide_count(
    free: Tensor, noise: Tensor, level: Tensor, size: Tensor, least: float | None
) -> tuple[Tensor, Tensor]:
    """1 to L of the positions; w = L / n."""
    count = 1 + counts_of(level, (size - 1).clamp(min=0))
    hidden = lowest_of(noise, free, count)
    return hidden, hidden * (size.double() / count)[..., None] / noise.shape[1]


def hide_with_complement(
    free: Tensor, noise: Tensor, level: Tensor, size: Tensor, least: float | None
) -> tuple[Tensor, Tensor]:
    """0 to L of the positions, and their complement; w = (L + 1) / 2n."""
    count = counts_of(level, size)
    mask = lowest_of(noise, free, count)
    hidden = torch.cat([mask, free[:, None] & ~mask], 1)
    share = (size + 1).double() / torch.cat([count, size - count], 1).clamp(min=1)
    return hidden, hidden * share[..., None] / 2 / noise.shape[1]


MASKS = {
    "independent": hide_independently,
    "counted": hide_count,
    "coupled": hide_with_complement,
}


def gauss_levels(states: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Nodes of Gauss-Legendre quadrature in [0, 1] and their weights: [N] each."""
    nodes, weights = np.polynomial.legendre.leggauss(states)
    return tuple(torch.tensor(x, device=device) for x in ((nodes + 1) / 2, weights / 2))


def hide_at_nodes(
    free: Tensor, noise: Tensor, level: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """A fixed count n = round(t L) >= 1 of the positions at each level t; w L / n, which is w / t
    if t L is whole. The expected weight of a position is w."""
    size = free.sum(1)[:, None]
    count = (level * size).round().clamp(min=1).long()
    hidden = lowest_of(noise, free, count)
    return hidden, hidden * (weight * size / count)[..., None]


def lowest_of(noise: Tensor, free: Tensor, count: Tensor) -> Tensor:
    """The `count` free positions with the lowest noise. [B, N, L], [B, L], [B, N] -> [B, N, L]"""
    order = noise.masked_fill(~free[:, None], torch.inf).argsort(-1).argsort(-1)
    return free[:, None] & (order < count[..., None])


def make_states(
    rows: HiddenRows, hidden: Tensor, weight: Tensor, *, trailing: Trailing, p_mask_prompt: float
) -> States:
    """The states that score something, of all rows. `hidden`, `weight`: [B, N, L]."""
    row, state = weight.any(-1).nonzero(as_tuple=True)
    void = rows.void[row] & (trailing == "hidden")
    return States(
        row=row,
        hidden=hidden[row, state] | void,
        weight=weight[row, state],
        count=hidden.shape[1],
        prompt=hidden_prompt(rows, p_mask_prompt, row),
    )


def hidden_prompt(rows: HiddenRows, share: float, row: Tensor) -> Tensor | None:
    """Columns of the prompt that are hidden in every state of a row, [N, S]; None: none."""
    if share == 0:
        return None
    noise = rng.uniform(rng.key(rows.key, "prompt"), (rows.prompt.shape[1],))
    return (rows.prompt & (noise < share))[row]
