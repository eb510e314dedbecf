"""Sampling strategies other than the plain one: (RolloutSource, prompts) -> (rollout, scores)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from tandem import distributed, rng
from tandem.advantages.baselines import OF_GREEDY_ROWS
from tandem.advantages.group import group_sum
from tandem.advantages.preference import extremes
from tandem.contracts import at_least, fraction, positive, register_sampling_strategy
from tandem.experience import unmask
from tandem.metrics import Metric, Sum
from tandem.training.collect import RolloutSource, Slots
from tandem.types import Prompt, Rollout, Scores, concat, take

# Fields of a pair: its answers, and the size of pictures among them.
ANSWERS = ("chosen", "rejected", "chosen_media", "rejected_media", "size")
OF_WHOLE_ROWS = {
    "steps": "rows of data were not sampled step by step; set an algorithm that trains on finished "
    "pictures, such as algorithm=sft"
}

# A strategy `gives` "pairs", a chosen and a rejected row in each group, and "baseline", rows that
# others are compared with.


# Demonstrations instead of samples
@register_sampling_strategy(reads={"demonstrations"}, refused=OF_WHOLE_ROWS)
def offline(source: RolloutSource, prompts: Slots) -> tuple[Rollout, Scores]:
    """Nothing is sampled: the rows are demonstrations."""
    return source.demonstrations(prompts)


# A chosen and a rejected answer to each prompt, from the data
@register_sampling_strategy(reads={"pairs"}, gives={"pairs"}, refused=OF_WHOLE_ROWS)
def preference_pairs(source: RolloutSource, prompts: Slots) -> tuple[Rollout, Scores]:
    """Nothing is sampled: the rows are a chosen and a rejected answer to each prompt."""
    return source.pairs(prompts)


# One group of fresh samples for each prompt, and the greedy answer as baseline (ReMax)
@register_sampling_strategy(gives={"baseline"}, refused=OF_GREEDY_ROWS)
def remax(source: RolloutSource, prompts: Slots) -> tuple[Rollout, Scores]:
    """One group for each prompt, with the greedy answer as its baseline (ReMax)."""
    return join_baseline(source.sample(prompts), source.sample_greedily(prompts))


# One group per random step: a noiseless trajectory that branches there (TempFlow-GRPO)
@register_sampling_strategy(
    refused={
        "tokens": "it branches at stochastic denoising steps, which text does not have; set "
        "algorithm/sampling_strategy=on_policy",
        "pictures": "it branches at stochastic denoising steps, but this objective trains none; "
        "set algorithm/sampling_strategy=on_policy",
    }
)
def tree(source: RolloutSource, prompts: Slots) -> tuple[Rollout, Scores]:
    """One group for each prompt and random step: its rows differ by the noise of that step, so
    their scores say what that step was worth (TempFlow-GRPO, arXiv:2508.04324)."""
    return source.sample_branches(prompts)


# Pairs, and answers to other prompts as the KL estimate of KTO
@register_sampling_strategy(reads={"pairs"}, gives={"pairs", "baseline"}, refused=OF_WHOLE_ROWS)
def kto_kl(source: RolloutSource, prompts: Slots) -> tuple[Rollout, Scores]:
    """Pairs, and each prompt with the answers to the previous different prompt as baseline rows.

    The log-probabilities of the latter estimate the KL to the reference (KTO, arXiv:2402.01306).
    They are never trained.
    """
    asked = source.prompts()
    others = {slot: _another(asked, slot) for slot in prompts}
    mismatched = {
        slot: replace(prompt, **{name: getattr(others[slot], name) for name in ANSWERS})
        for slot, prompt in prompts.items()
    }
    return join_baseline(source.pairs(prompts), source.pairs(mismatched, baseline=True))


def _another(asked: Sequence[Prompt], slot: int) -> Prompt:
    """The previous prompt, cyclically, that differs from the one of a slot."""
    before = (asked[slot - back] for back in range(1, len(asked)))
    other = next((prompt for prompt in before if prompt.id != asked[slot].id), None)
    if other is None:
        raise ValueError(
            f"a mismatched answer belongs to another prompt, but all {len(asked)} prompts of this "
            f"iteration are {asked[slot].id}; give at least two pairs, and set "
            "prompts_per_step=2 or more"
        )
    return other


# Fresh samples in some iterations, demonstrations in the others (GKD)
@register_sampling_strategy(reads={"demonstrations"}, gives={"samples"}, refused=OF_WHOLE_ROWS)
def mixed(
    source: RolloutSource,
    prompts: Slots,
    *,
    # Share of iterations that sample, the others imitate; published: 0.5.
    sampled: Annotated[float, fraction] = 0.5,
) -> tuple[Rollout, Scores]:
    """Samples with probability `sampled`, else demonstrations, for a whole iteration.

    One draw for all ranks. Source: GKD, arXiv:2306.13649 (its lambda).
    """
    drawn = rng.uniform(rng.key(source.plan.seed, "mixed", source.iteration))
    return source.sample(prompts) if float(drawn) < sampled else source.demonstrations(prompts)


# Fresh samples: the best and the worst of each group (online preferences)
@register_sampling_strategy(gives={"pairs"}, compares="group")
def best_and_worst(source: RolloutSource, prompts: Slots) -> tuple[Rollout, Scores]:
    """The best and the worst sample of each group whose scores differ: online preferences.

    A group whose scores tie gives no pair.
    """
    rollout, scores = source.sample(prompts)
    usable = scores.scored & rollout.mask.any(1)
    rows = extremes(scores.total, usable, rollout.group).nonzero()[:, 0]
    pairs, groups = torch.tensor(len(rows) // 2), torch.tensor(len(prompts))
    source.log({"preference/pairs": Sum(pairs, groups)})
    if distributed.all_sum(pairs) == 0:
        return rollout, scores  # no group carries a signal; the guard counts such iterations
    kept = (take(rollout, rows), take(scores, rows))
    # Every rank keeps at least one row.
    rollout, scores = (
        concat(records) for records in zip(kept, _bystander(rollout, scores), strict=True)
    )
    return rollout, scores


@register_sampling_strategy(compares="group")
def dynamic_sampling(
    source: RolloutSource,
    prompts: Slots,
    *,
    metric: str | None = None,  # name of the reward part that must differ; null: the first one
    max_rounds: Annotated[int, positive],  # largest number of draws in an iteration
    tolerance: Annotated[float, at_least(0)] = 1e-6,  # difference of scores below which they tie
) -> tuple[Rollout, Scores]:
    """Groups whose scores differ, as many as there were prompts (DAPO, arXiv:2503.14476).

    Draws again until there are enough or `max_rounds` were drawn; surplus groups are dropped.
    `metric` names the reward part that must differ, before any shaping; None is the first one.
    """
    wanted = int(distributed.all_sum(torch.tensor(len(prompts))))
    kept: list[tuple[Rollout, Scores]] = []
    drawn = found = 0
    while found < wanted and len(kept) < max_rounds:
        rollout, scores = source.sample(source.extra_prompts(len(kept)) if kept else prompts)
        # A row whose other reward failed is not scored, and has no advantage.
        said = scores.part(metric, rollout.prompts).masked_fill(~scores.scored, torch.nan)
        rows = differing(said, rollout.group, tolerance).nonzero()[:, 0]
        kept.append((take(rollout, rows), take(scores, rows)))
        drawn, found = drawn + wanted, found + _groups(rollout.group[rows])
    source.log(_acceptance(found, drawn, len(kept)))
    if found == 0:
        return rollout, scores  # no group carries a signal; the guard counts such iterations
    kept.append(_bystander(rollout, scores))  # every rank keeps at least one row
    rollout, scores = (concat(records) for records in zip(*kept, strict=True))
    return _first_groups(rollout, scores, wanted)


def _bystander(rollout: Rollout, scores: Scores) -> tuple[Rollout, Scores]:
    """The first row, excluded from training and from the statistics of its group."""
    first = torch.zeros(1, dtype=torch.int64)
    scores = take(scores, first)
    return unmask(take(rollout, first)), replace(scores, scored=torch.zeros_like(scores.scored))


def _acceptance(found: int, drawn: int, rounds: int) -> dict[str, Metric]:
    counts = {"acceptance": (found, drawn), "rounds": (rounds, 1)}
    return {
        f"dynamic_sampling/{name}": Sum(torch.tensor(total), torch.tensor(count))
        for name, (total, count) in counts.items()
    }


def _first_groups(rollout: Rollout, scores: Scores, wanted: int) -> tuple[Rollout, Scores]:
    """The first `wanted` groups of all ranks, and the rows without a trained step."""
    trained = rollout.mask.any(1)
    ids = distributed.gather(torch.where(trained, rollout.group, -1)).unique()
    kept = ids[ids >= 0][:wanted].to(rollout.group.device)
    rows = (torch.isin(rollout.group, kept) | ~trained).nonzero()[:, 0]
    return take(rollout, rows), take(scores, rows)


def differing(score: Tensor, group: Tensor, tolerance: float) -> Tensor:
    """True for every row of a group whose known scores are not all equal. [B] -> [B] bool."""
    known, score = score.isfinite(), score.double()  # the precision of group comparisons
    count = group_sum(known, group).clamp(min=1)
    mean = group_sum(torch.where(known, score, 0), group) / count
    deviation = torch.where(known, (score - mean).abs(), 0)
    return group_sum((deviation > tolerance).float(), group) > 0


def _groups(group: Tensor) -> int:
    return int(distributed.all_sum(torch.tensor(len(group.unique()))))


def join_baseline(
    rows: tuple[Rollout, Scores], compared: tuple[Rollout, Scores]
) -> tuple[Rollout, Scores]:
    """Rows to train, followed by the baseline rows."""
    rollout, scores = rows
    rollout = replace(rollout, baseline=torch.zeros_like(rollout.truncated))
    return concat([rollout, compared[0]]), concat([scores, compared[1]])
