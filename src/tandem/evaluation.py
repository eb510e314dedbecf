"""How good a policy is on held-out prompts, under each of the samplings it is evaluated by.

All noise is a function of (key, prompt, sample), whatever the iteration: two evaluations of a run
differ by the weights alone, and the first samples of a longer one are those of a shorter one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from operator import itemgetter
from typing import Protocol

import torch
from torch import Tensor

from tandem import draws, ranks
from tandem.collect import part
from tandem.data.records import reported_with
from tandem.drift import MEASURES
from tandem.passes import Evaluation, Pass
from tandem.policies.flow.records import FlowSampling
from tandem.policies.sampling import Sampling
from tandem.record import tables
from tandem.rewards.images import pixels, spread
from tandem.types import Prompt, Rollout, Scores

# Summed over the samples of a prompt; "known" counts those whose reward part is not missing.
COUNTED = ("correct", "known", "length", "truncated", "reward", "scored")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    metrics: Mapping[str, float]
    prompts: Mapping[str, Sequence[float]]  # of some metrics the value of each prompt; NaN: none
    rows: Sequence[Mapping]  # of the sample table
    faults: Mapping[str, int]  # why scores are missing -> how many, this rank's


class Sampler(Protocol):
    """What evaluation wants of a policy."""

    sampling: Sampling | FlowSampling

    def ready(self) -> None: ...

    def at_own_pace(self, sampling: Sampling | FlowSampling) -> AbstractContextManager[None]: ...

    def sample(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        *,
        key: int,
        slots: Sequence[int],
        sampling: Sampling | FlowSampling,
    ) -> Rollout: ...

    def describe_prompt(self, prompt: Prompt) -> str: ...


class Judges(Protocol):
    """What evaluation wants of rewards."""

    @property
    def components(self) -> Mapping[str, object]: ...

    def __call__(
        self, outputs: Sequence[str | Tensor], prompts: Sequence[Prompt], group: Tensor
    ) -> Scores: ...

    def pop_faults(self) -> Mapping[str, int]: ...


def held_out(prompts: Sequence[Prompt], count: int | None) -> list[Prompt]:
    """The prompts of every evaluation: a keyed choice, the same for all seeds."""
    if count is None or count >= len(prompts):
        return list(prompts)
    chosen = draws.permutation(draws.key("held out"), len(prompts))[:count]
    return [prompts[i] for i in chosen.sort().values.tolist()]


def evaluate(
    policy: Sampler,
    rewards: Judges,
    prompts: Sequence[Prompt],
    settings: Evaluation,
    *,
    key: int,
    full: bool,
    stop: Callable[[], bool],
) -> Evaluated | None:
    """Metrics and the sample table over the prompts of all ranks; None: `stop` said so.

    `full` measures pass@k too. Every rank answers its share of the prompts. `stop`, once true,
    stays so.
    """
    policy.ready()
    passes = settings.passes(policy.sampling, full=full)
    columns = Columns(tuple(rewards.components))
    counts = torch.zeros(len(passes), len(prompts), len(columns.names), dtype=torch.float64)
    table: list[tuple[int, int, dict]] = []  # pass, slot, row
    for number, one in enumerate(passes):
        for slots, rollout, scores in _answers(policy, rewards, prompts, one, key=key, stop=stop):
            counts[number, slots] = columns.count(rollout, scores, settings, one)
            shown = _shown(slots, settings.rows, one)
            at = [row for _, row in shown]
            rows = tables.rows(rollout, scores, at, kind=one.kind, describe=policy.describe_prompt)
            table += [(number, slot, row) for (slot, _), row in zip(shown, rows, strict=True)]
        # Ranks meet here and not before: one that stops must not leave the others waiting.
        if ranks.largest(torch.tensor(float(stop()))) > 0:
            return None
    metrics: dict[str, float] = {}
    of_prompts: dict[str, list[float]] = {}
    for one, summed in zip(passes, ranks.total(counts), strict=True):
        sums = columns.named(summed)
        metrics |= _metrics(sums, columns.parts, prompts, one)
        of_prompts |= {
            _name(one, x): y.tolist() for x, y in _means(sums).items() if x in one.measures
        }
    rows = [row for *_, row in sorted(ranks.listed(table), key=itemgetter(0, 1))]
    return Evaluated(metrics=metrics, prompts=of_prompts, rows=rows, faults=rewards.pop_faults())


def pass_at(tries: int, correct: int, k: int) -> float:
    """Chance that k of the `tries` samples, drawn without replacement, hold a correct one.

    The unbiased estimate 1 - C(n-c, k) / C(n, k) of arXiv:2107.03374; NaN for fewer than k tries.
    """
    return 1 - math.comb(tries - correct, k) / math.comb(tries, k) if tries >= k else math.nan


def _answers(
    policy: Sampler,
    rewards: Judges,
    prompts: Sequence[Prompt],
    one: Pass,
    *,
    key: int,
    stop: Callable[[], bool],
) -> Iterator[tuple[list[int], Rollout, Scores]]:
    """Some slots of this rank, with their samples, until it is told to stop; ranks may differ in
    how often."""
    own = list(range(ranks.rank(), len(prompts), ranks.world_size()))
    step = max(1, policy.sampling.max_rows // one.samples)
    with policy.at_own_pace(one.sampling):
        for start in range(0, len(own), step):
            if stop():
                return
            slots = own[start : start + step]
            yield slots, *_try(policy, rewards, [prompts[slot] for slot in slots], one, key)


def _try(
    policy: Sampler, rewards: Judges, prompts: Sequence[Prompt], one: Pass, key: int
) -> tuple[Rollout, Scores]:
    # Named by prompt and not by place: its noise stays the same in any choice of prompts.
    slots = [prompt.id for prompt in prompts]
    rollout = policy.sample(prompts, one.samples, key=key, slots=slots, sampling=one.sampling)
    # Several prompts may have one id, so that the policy's groups may hold more than one.
    group = torch.arange(len(prompts)).repeat_interleave(one.samples)
    return rollout, rewards(rollout.outputs, rollout.prompts, group)


def _shown(slots: Sequence[int], rows: int, one: Pass) -> list[tuple[int, int]]:
    """(slot, row) of the first samples of those of the first prompts that are among these slots."""
    if one.kind is None:
        return []
    samples = range(min(one.shown, one.samples))
    return [
        (slot, i * one.samples + j) for i, slot in enumerate(slots) if slot < rows for j in samples
    ]


@dataclass(frozen=True, slots=True)
class Columns:
    """What is counted of each prompt, so that ranks can add it up."""

    parts: tuple[str, ...]  # names of the rewards

    @property
    def names(self) -> tuple[str, ...]:
        of_parts = (f"{what} {part}" for part in self.parts for what in ("known", "total"))
        return (*COUNTED, *of_parts, *MEASURES, "spread")

    def named(self, counts: Tensor) -> dict[str, Tensor]:
        """[prompts, len(names)] -> [prompts] of each"""
        return dict(zip(self.names, counts.unbind(-1), strict=True))

    def count(self, rollout: Rollout, scores: Scores, settings: Evaluation, one: Pass) -> Tensor:
        """Sums over the samples of each prompt: [prompts, len(names)]."""
        decisive = part(scores, settings.metric, rollout.prompts).cpu()
        scored = scores.scored.cpu()
        each = {
            "correct": settings.right(decisive),
            "known": decisive.isfinite(),
            "length": rollout.length.cpu(),
            "truncated": rollout.truncated.cpu(),
            "reward": torch.where(scored, scores.total.cpu(), 0),
            "scored": scored,
        }
        for name, said in scores.parts.items():
            known = said.cpu().isfinite()
            each |= {f"known {name}": known, f"total {name}": torch.where(known, said.cpu(), 0)}
        each |= _looks(rollout, one)
        rows = torch.stack([each[name].double() for name in self.names[:-1]], dim=-1)
        sums = rows.view(-1, one.samples, len(each)).sum(1)
        return torch.cat([sums, _spreads(rollout, one)[:, None]], 1)


def _looks(rollout: Rollout, one: Pass) -> dict[str, Tensor]:
    """What is measured of each picture, where that is asked: [B] of each."""
    asked = [name for name in MEASURES if name in one.measures]
    nothing = torch.zeros(len(rollout.outputs), dtype=torch.float64)
    shown = torch.stack([pixels(picture) for picture in rollout.outputs]) if asked else nothing
    return {name: MEASURES[name](shown) if name in asked else nothing for name in MEASURES}


def _spreads(rollout: Rollout, one: Pass) -> Tensor:
    """How much the samples of each prompt differ, where that is asked: [prompts]."""
    starts = range(0, len(rollout.outputs), one.samples)
    if "diversity" not in one.measures:
        return torch.zeros(len(starts), dtype=torch.float64)
    return torch.stack([spread(rollout.outputs[i : i + one.samples]) for i in starts])


def _metrics(
    sums: Mapping[str, Tensor], parts: Sequence[str], prompts: Sequence[Prompt], one: Pass
) -> dict[str, float]:
    """sums: [prompts] of each -> eval/..., as the pass names its metrics."""
    answers = one.samples * len(prompts)
    of_prompts = _means(sums)
    whole = {
        "accuracy": _mean(of_prompts["accuracy"]),
        "reward": (sums["reward"].sum() / sums["scored"].sum()).item(),
        "length": sums["length"].sum().item() / answers,
        "truncated": sums["truncated"].sum().item() / answers,
        "missing": answers - sums["known"].sum().item(),
        "diversity": _mean(sums["spread"]),
        **{name: sums[name].sum().item() / answers for name in MEASURES},
    }
    metrics = {_name(one, measure): whole[measure] for measure in one.measures}
    if "reward" in one.measures and len(parts) > 1:
        for part in parts:
            mean = sums[f"total {part}"].sum() / sums[f"known {part}"].sum()
            metrics[_name(one, f"reward_{part}")] = mean.item()
    for measure in one.by_source:
        metrics |= _by_source(_name(one, measure), of_prompts[measure], prompts)
    for k in one.tries:
        chance = _pass_at(sums["known"], sums["correct"], k)
        metrics[f"eval/pass@{k}"] = _mean(chance)
        if k == max(one.tries):
            metrics |= _by_source(f"eval/pass@{k}", chance, prompts)
    return metrics


def _means(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """[prompts] of each, over its samples; NaN for a prompt that has no score."""
    return {
        "accuracy": sums["correct"] / sums["known"],
        "reward": sums["reward"] / sums["scored"],
    }


def _name(one: Pass, measure: str) -> str:
    return f"eval/{one.name.format(measure)}"


def _pass_at(known: Tensor, correct: Tensor, k: int) -> Tensor:
    """[prompts] -> [prompts]"""
    pairs = zip(known.int().tolist(), correct.int().tolist(), strict=True)
    return torch.tensor([pass_at(n, c, k) for n, c in pairs], dtype=torch.float64)


def _by_source(name: str, values: Tensor, prompts: Sequence[Prompt]) -> dict[str, float]:
    """Source by source; and the sources together that the data want reported together."""
    places: dict[str, list[int]] = {}
    for i, prompt in enumerate(prompts):
        places.setdefault(prompt.source, []).append(i)
    for i, prompt in enumerate(prompts):
        for several in reported_with(prompt):
            places.setdefault(several, []).append(i)
    return {f"{name}/{source}": _mean(values[chosen]) for source, chosen in places.items()}


def _mean(values: Tensor) -> float:
    """Over the prompts that have a value; NaN if none has."""
    return values[values.isfinite()].mean().item()
