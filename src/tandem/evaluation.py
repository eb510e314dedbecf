"""How good a policy is on held-out prompts: greedily, sampled, and with several tries.

All noise is a function of (key, prompt, sample), whatever the iteration: two evaluations of a run
differ by the weights alone, and the first samples of a longer one are those of a shorter one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from tandem import draws, ranks
from tandem.policies.sampling import Sampling
from tandem.record import tables
from tandem.types import Prompt, Rollout, Scores

GREEDY = 0.0
# Summed over the samples of a prompt; "known" counts those whose reward part is not missing.
COUNTED = ("correct", "known", "length", "truncated", "reward", "scored")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What is measured on held-out prompts, and how often."""

    every: int | None  # iterations; None: never
    prompts: int | None  # None: all
    samples: int  # of each prompt at each temperature
    temperatures: tuple[float, ...]  # the first one is that of pass@k, lengths and tables
    pass_at: tuple[int, ...]  # at both ends of a run
    metric: str | None = None  # the reward part that says what is correct; None: the first one
    threshold: float = 1.0  # of that part, before its weight
    rows: int = 16  # prompts in the sample table
    top_p: float = 1.0  # of the sampled answers; training samples are never truncated
    top_k: int = 0
    split: Literal["eval", "test"] = "eval"  # test: for evaluate=true, what nothing has read

    def __post_init__(self) -> None:
        if not self.temperatures or min(self.temperatures) <= GREEDY:
            raise ValueError(
                f"evaluation.temperatures={list(self.temperatures)} must be one or more above 0; "
                "greedy answers are measured anyway"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    metrics: Mapping[str, float]
    rows: Sequence[Mapping]  # of the sample table, this rank's
    faults: Mapping[str, int]  # why scores are missing -> how many, this rank's


class Answers(Protocol):
    """What evaluation wants of a policy."""

    sampling: Sampling

    def sample(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        *,
        key: int,
        slots: Sequence[int],
        sampling: Sampling,
    ) -> Rollout: ...

    def describe_prompt(self, prompt: Prompt) -> str: ...


class Judges(Protocol):
    """What evaluation wants of rewards."""

    def __call__(self, outputs: Sequence[str], prompts: Sequence[Prompt]) -> Scores: ...

    def pop_faults(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    temperature: float
    samples: int
    top_p: float = 1.0
    top_k: int = 0


def held_out(prompts: Sequence[Prompt], count: int | None) -> list[Prompt]:
    """The prompts of every evaluation: a keyed choice, the same for all seeds."""
    if count is None or count >= len(prompts):
        return list(prompts)
    chosen = draws.permutation(draws.key("held out"), len(prompts))[:count]
    return [prompts[i] for i in chosen.sort().values.tolist()]


def evaluate(
    policy: Answers,
    rewards: Judges,
    prompts: Sequence[Prompt],
    settings: Evaluation,
    *,
    key: int,
    full: bool,
    stop: Callable[[], bool],
) -> Evaluated | None:
    """Metrics over the prompts of all ranks, and this rank's samples; None: `stop` said so.

    `full` measures pass@k too. Every rank answers its share of the prompts.
    """
    passes = _passes(settings, full=full)
    counts = torch.zeros(len(passes), len(prompts), len(COUNTED), dtype=torch.float64)
    table: list[dict] = []
    stopped = False
    for number, slots in _work(passes, len(prompts), policy.sampling.max_rows):
        stopped = stop()
        if stopped:
            break
        asked = [prompts[slot] for slot in slots]
        rollout, scores = _try(policy, rewards, asked, passes[number], key)
        counts[number, slots] = _count(rollout, scores, settings, passes[number].samples)
        if number < 2:
            shown = [i * passes[number].samples for i, s in enumerate(slots) if s < settings.rows]
            table += _shown(policy, rollout, scores, shown, passes[number])
    # Ranks meet here and not before: one that stops must not leave the others waiting.
    if ranks.largest(torch.tensor(float(stopped))) > 0:
        return None
    metrics = _metrics(ranks.total(counts), prompts, passes, settings.pass_at if full else ())
    return Evaluated(metrics=metrics, rows=table, faults=rewards.pop_faults())


def pass_at(tries: int, correct: int, k: int) -> float:
    """Chance that k of the `tries` samples, drawn without replacement, hold a correct one.

    The unbiased estimate 1 - C(n-c, k) / C(n, k) of arXiv:2107.03374; NaN for fewer than k tries.
    """
    return 1 - math.comb(tries - correct, k) / math.comb(tries, k) if tries >= k else math.nan


def _passes(settings: Evaluation, *, full: bool) -> list[Pass]:
    """Greedy, then the temperatures. The first of them serves pass@k with the same samples."""
    first, *others = settings.temperatures
    most = max([settings.samples, *(settings.pass_at if full else ())])
    cut = {"top_p": settings.top_p, "top_k": settings.top_k}
    return [
        Pass(temperature=GREEDY, samples=1),
        Pass(temperature=first, samples=most, **cut),
        *(Pass(temperature=t, samples=settings.samples, **cut) for t in others),
    ]


def _work(passes: Sequence[Pass], prompts: int, rows: int) -> Iterator[tuple[int, list[int]]]:
    """Numbers of passes, each with slots of this rank that make about `rows` samples."""
    own = list(range(ranks.rank(), prompts, ranks.world_size()))
    for number, one in enumerate(passes):
        step = max(1, rows // one.samples)
        for start in range(0, len(own), step):
            yield number, own[start : start + step]


def _try(
    policy: Answers, rewards: Judges, prompts: Sequence[Prompt], one: Pass, key: int
) -> tuple[Rollout, Scores]:
    # Named by prompt and not by place: its noise stays the same in any choice of prompts.
    rollout = policy.sample(
        prompts,
        one.samples,
        key=key,
        slots=[prompt.id for prompt in prompts],
        sampling=replace(
            policy.sampling, temperature=one.temperature, top_p=one.top_p, top_k=one.top_k
        ),
    )
    return rollout, rewards(rollout.outputs, rollout.prompts)


def _count(rollout: Rollout, scores: Scores, settings: Evaluation, samples: int) -> Tensor:
    """Sums over the samples of each prompt: [prompts, len(COUNTED)]."""
    part = scores.parts[settings.metric or next(iter(scores.parts))].cpu()
    scored = scores.scored.cpu()
    each = {
        "correct": part >= settings.threshold,  # a missing one is NaN, hence not correct
        "known": part.isfinite(),
        "length": rollout.length.cpu(),
        "truncated": rollout.truncated.cpu(),
        "reward": torch.where(scored, scores.total.cpu(), 0),
        "scored": scored,
    }
    rows = torch.stack([each[name].double() for name in COUNTED], dim=-1)
    return rows.view(-1, samples, len(COUNTED)).sum(1)


def _shown(
    policy: Answers, rollout: Rollout, scores: Scores, chosen: list[int], one: Pass
) -> list[dict]:
    kind = "greedy" if one.temperature == GREEDY else "eval"
    return tables.rows(rollout, scores, chosen, kind=kind, describe=policy.describe_prompt)


def _metrics(
    counts: Tensor, prompts: Sequence[Prompt], passes: Sequence[Pass], ks: Sequence[int]
) -> dict[str, float]:
    """counts: [passes, prompts, len(COUNTED)] -> eval/..."""
    sums = dict(zip(COUNTED, counts.unbind(-1), strict=True))  # each [passes, prompts]
    accuracy = sums["correct"] / sums["known"]  # NaN for a prompt that has no score
    answers = passes[1].samples * len(prompts)
    metrics = {
        "eval/greedy_accuracy": _mean(accuracy[0]),
        "eval/accuracy": _mean(accuracy[1]),
        "eval/reward": (sums["reward"][1].sum() / sums["scored"][1].sum()).item(),
        "eval/length": sums["length"][1].sum().item() / answers,
        "eval/truncated": sums["truncated"][1].sum().item() / answers,
        "eval/missing": answers - sums["known"][1].sum().item(),
    }
    for one, of_prompts in zip(passes[2:], accuracy[2:], strict=True):
        metrics[f"eval/accuracy_t{one.temperature:g}"] = _mean(of_prompts)
    metrics |= _by_source("eval/accuracy", accuracy[1], prompts)
    for k in ks:
        of_prompts = _pass_at(sums["known"][1], sums["correct"][1], k)
        metrics[f"eval/pass@{k}"] = _mean(of_prompts)
        if k == max(ks):
            metrics |= _by_source(f"eval/pass@{k}", of_prompts, prompts)
    return metrics


def _pass_at(known: Tensor, correct: Tensor, k: int) -> Tensor:
    """[prompts] -> [prompts]"""
    pairs = zip(known.int().tolist(), correct.int().tolist(), strict=True)
    return torch.tensor([pass_at(n, c, k) for n, c in pairs], dtype=torch.float64)


def _by_source(name: str, values: Tensor, prompts: Sequence[Prompt]) -> dict[str, float]:
    places: dict[str, list[int]] = {}
    for i, prompt in enumerate(prompts):
        places.setdefault(prompt.source, []).append(i)
    return {f"{name}/{source}": _mean(values[chosen]) for source, chosen in places.items()}


def _mean(values: Tensor) -> float:
    """Over the prompts that have a value; NaN if none has."""
    return values[values.isfinite()].mean().item()
