"""Evaluation of a policy on held-out prompts, under each of its sampling modes.

All noise is a function of (key, prompt, sample), not of the iteration: two evaluations of a run
differ only in the weights, and a longer one starts with the samples of a shorter one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from operator import itemgetter
from typing import Protocol

import torch
from torch import Tensor

from tandem import distributed, rng
from tandem.evaluation import sample_tables
from tandem.evaluation.prompt_metrics import PromptMetrics, compute_metrics, measure_prompts
from tandem.evaluation.settings import EvalMode, Evaluation
from tandem.policies.flow.records import FlowSampling
from tandem.policies.language.records import Sampling
from tandem.types import Prompt, Rollout, Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The metrics of an evaluation, the table of its samples, and the counts of each prompt."""

    metrics: Mapping[str, float]
    prompts: Mapping[str, Sequence[float]]  # metric -> value of each prompt; NaN: none
    rows: Sequence[Mapping]  # of the sample table
    faults: Mapping[str, int]  # reason -> number of missing scores on this rank


class Sampler(Protocol):
    """The interface of a policy for evaluation."""

    sampling: Sampling | FlowSampling

    def ready(self) -> None: ...

    def summon_full_params(
        self, sampling: Sampling | FlowSampling
    ) -> AbstractContextManager[None]: ...

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

    def describe_steps(self, rollout: Rollout, row: int) -> Sequence[str]: ...


class Judges(Protocol):
    """The interface of rewards for evaluation."""

    @property
    def components(self) -> Mapping[str, object]: ...

    def __call__(
        self, outputs: Sequence[str | Tensor], prompts: Sequence[Prompt], group: Tensor
    ) -> Scores: ...

    def pop_faults(self, *, judges: bool = False) -> Mapping[str, int]: ...


def choose_held_out(prompts: Sequence[Prompt], count: int | None) -> list[Prompt]:
    """The prompts of every evaluation: a keyed choice, the same for all seeds."""
    if count is None or count >= len(prompts):
        return list(prompts)
    chosen = rng.permutation(rng.key("held out"), len(prompts))[:count]
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
    """Metrics and the sample table over the prompts of all ranks; None if `stop` ended it.

    `full` measures pass@k too. Every rank answers its share of the prompts. `stop`, once true,
    stays so.
    """
    policy.ready()
    passes = settings.passes(policy.sampling, full=full)
    columns = PromptMetrics(tuple(rewards.components))
    counts = torch.zeros(len(passes), len(prompts), len(columns.names), dtype=torch.float64)
    table: list[tuple[int, int, dict]] = []  # pass, slot, row
    for number, one in enumerate(passes):
        for slots, rollout, scores in _sample_slots(
            policy, rewards, prompts, one, key=key, stop=stop
        ):
            counts[number, slots] = columns.count(rollout, scores, settings, one)
            shown = _choose_shown(slots, settings.rows, one)
            at = [row for _, row in shown]
            rows = sample_tables.make_rows(
                rollout,
                scores,
                at,
                kind=one.kind,
                describe=policy.describe_prompt,
                history=policy.describe_steps,
            )
            table += [(number, slot, row) for (slot, _), row in zip(shown, rows, strict=True)]
        # The only collective call: a rank that stops must not leave the others waiting.
        if distributed.all_max(torch.tensor(float(stop()))) > 0:
            return None
    metrics: dict[str, float] = {}
    of_prompts: dict[str, list[float]] = {}
    for one, summed in zip(passes, distributed.all_sum(counts), strict=True):
        sums = columns.by_name(summed)
        metrics |= compute_metrics(sums, columns.parts, prompts, one)
        of_prompts |= measure_prompts(sums, columns.parts, one)
    rows = [row for *_, row in sorted(distributed.all_gather_object(table), key=itemgetter(0, 1))]
    faults = {**rewards.pop_faults(), **rewards.pop_faults(judges=True)}
    return Evaluated(metrics=metrics, prompts=of_prompts, rows=rows, faults=faults)


def _sample_slots(
    policy: Sampler,
    rewards: Judges,
    prompts: Sequence[Prompt],
    one: EvalMode,
    *,
    key: int,
    stop: Callable[[], bool],
) -> Iterator[tuple[list[int], Rollout, Scores]]:
    """Batches of slots of this rank with their samples, until `stop`; ranks may have different
    numbers of batches."""
    own = list(range(distributed.rank(), len(prompts), distributed.world_size()))
    step = max(1, policy.sampling.max_rows // one.samples)
    with policy.summon_full_params(one.sampling):
        for start in range(0, len(own), step):
            if stop():
                return
            slots = own[start : start + step]
            yield slots, *_try(policy, rewards, [prompts[slot] for slot in slots], one, key)


def _try(
    policy: Sampler, rewards: Judges, prompts: Sequence[Prompt], one: EvalMode, key: int
) -> tuple[Rollout, Scores]:
    # Keyed by prompt, not by position: noise does not depend on the choice of prompts.
    slots = [prompt.id for prompt in prompts]
    rollout = policy.sample(prompts, one.samples, key=key, slots=slots, sampling=one.sampling)
    # Several prompts may share an id, so groups of the policy may hold several prompts.
    group = torch.arange(len(prompts)).repeat_interleave(one.samples)
    return rollout, rewards(rollout.outputs, rollout.prompts, group)


def _choose_shown(slots: Sequence[int], rows: int, one: EvalMode) -> list[tuple[int, int]]:
    """(slot, row) of the first samples of each of the first prompts among these slots."""
    if one.kind is None:
        return []
    samples = range(min(one.shown, one.samples))
    return [
        (slot, i * one.samples + j) for i, slot in enumerate(slots) if slot < rows for j in samples
    ]
