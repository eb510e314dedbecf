"""The source of an iteration's rows, and the plain sampling strategy, one group per prompt.

A strategy is (RolloutSource, prompts) -> (rollout, scores); the others are in `strategies`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from tandem import distributed, rng
from tandem.algorithm.part_checks import refuse_other_records
from tandem.contracts import register_sampling_strategy
from tandem.contracts.wrong_output import WrongOutput
from tandem.metrics import Metric, merge_metrics
from tandem.policies.language.records import Sampling
from tandem.progress import PROGRESS
from tandem.rewards import Rewards
from tandem.training.ahead_rows import tickets_in
from tandem.training.batches import BatchPlan
from tandem.training.episode_rows import spread_over_moves
from tandem.types import Prompt, Rollout, Scores, concat, map_fields

log = logging.getLogger(__name__)
Slots = Mapping[int, Prompt]  # place in the iteration -> prompt; the slots of this rank
BRANCH = 2**40  # distance of the group ids of one slot; above the number of slots


class Clock:
    """Seconds of each phase of an iteration."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.between: Callable[[bool], None] = lambda together: None  # called at every tick
        self.tick()

    def tick(self, *, together: bool = False) -> None:
        """Report progress; `together`: all ranks are at the same point."""
        PROGRESS.report()
        self.between(together)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.tick()
        start = time.perf_counter()
        yield
        self.tick()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def slots_of_this_rank(prompts: Sequence[Prompt], first: int = 0) -> dict[int, Prompt]:
    """The prompts of this rank, every world-size-th one, by slot; slots count from `first`."""
    own = range(distributed.rank(), len(prompts), distributed.world_size())
    return {first + i: prompts[i] for i in own}


class RolloutSource:
    """The interface of sampling strategies: the rows of one iteration, samples of a policy and
    examples of its data, with their scores. It counts the rows they take."""

    reproducible = True  # False: the time that rows take decides which are trained together

    def __init__(
        self,
        *,
        policy: torch.nn.Module,
        rewards: Rewards,
        stream: torch.nn.Module,
        plan: BatchPlan,
        clock: Clock,
    ) -> None:
        self.policy, self.rewards, self.stream = policy, rewards, stream
        self.plan, self.clock = plan, clock
        self.begin(0)

    def begin(self, iteration: int) -> None:
        self.iteration = iteration
        self.policy.iteration = iteration
        self.metrics: dict[str, Metric] = {}
        # All rows except baselines, including those that a filter left out.
        self.taken: list[tuple[Rollout, Scores]] = []
        self.samples = self.steps = 0  # of this rank, including baselines
        self.sampled: set[int] = set()  # slots

    @property
    def timing(self) -> dict[str, float]:
        """Times of the iteration that the clock does not count."""
        return self.policy.pop_timing()

    def prompts_of_batch(self) -> Sequence[Prompt] | None:
        """The prompts of the batch over all ranks, by group; None: those drawn in the iteration."""
        return None

    def state(self, iteration: int) -> dict[str, Tensor]:
        """The rows drawn for this iteration and later ones: tensors of any shape [...]."""
        return self.stream.state() if self.policy.lagged.staleness else {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the result of `state`: tensors of any shape [...]."""
        if self.policy.lagged.staleness:
            self.stream.load_state(state)
        if dropped := tickets_in(state):
            log.warning(
                "%d groups that an engine sampled ahead of training are dropped; this run does not "
                "sample ahead (rollout.staleness=%d)",
                len(dropped),
                self.policy.lagged.staleness,
            )

    def sample(self, prompts: Slots) -> tuple[Rollout, Scores]:
        """A group of samples for each prompt, and their scores."""
        if again := self.sampled & prompts.keys():
            raise WrongOutput(
                f"iteration {self.iteration}: a sampling strategy samples slot {min(again)} twice, "
                "which gives the same samples; set group_size, or use source.extra_prompts(round)"
            )
        self.sampled |= prompts.keys()
        return self._take(*self._sample(prompts, self.plan.group_size))

    def sample_greedily(self, prompts: Slots) -> tuple[Rollout, Scores]:
        """The greedy answer to each prompt, as a baseline row."""
        greedy = replace(self.policy.sampling, temperature=0.0)
        return self._take(*self._sample(prompts, 1, sampling=greedy), baseline=True)

    def sample_branches(self, prompts: Slots) -> tuple[Rollout, Scores]:
        """A group for each prompt and random step, whose rows differ only in its noise."""
        branches = []
        for number, sampling in enumerate(self.policy.branches()):
            rollout, scores = self._sample(prompts, self.plan.group_size, sampling=sampling)
            group = rollout.group + number * BRANCH
            branches.append((replace(rollout, group=group), scores))
        rollout, scores = (concat(records) for records in zip(*branches, strict=True))
        return self._take(rollout, scores)

    def demonstrations(self, prompts: Slots) -> tuple[Rollout, Scores]:
        """The demonstrations that come with the prompts, each with score 1."""
        return self._take(*self._encode(list(prompts.values()), list(prompts), score=1.0))

    def pairs(self, prompts: Slots, *, baseline: bool = False) -> tuple[Rollout, Scores]:
        """The chosen answer to each prompt with score 1, then its rejected one with score 0.

        `baseline`: as baseline rows, which are not trained.
        """
        sides = [prompt.sides for prompt in prompts.values()]
        rows = [
            self._encode([both[side] for both in sides], list(prompts), score=1.0 - side)
            for side in (0, 1)
        ]
        rollout, scores = (concat(records) for records in zip(*rows, strict=True))
        return self._take(rollout, scores, baseline=baseline)

    def prompts(self) -> Sequence[Prompt]:
        """The prompts of the iteration on all ranks, by slot."""
        return self.stream.draw(self.iteration, self.plan.prompts_per_step)

    def extra_prompts(self, round: int) -> Slots:
        """Fresh prompts of this rank for a further round."""
        count = self.plan.prompts_per_step
        prompts = self.stream.draw(self.iteration, count, round=round)
        return slots_of_this_rank(prompts, first=round * count)

    def log(self, metrics: Mapping[str, Metric]) -> None:
        """Add records to the metrics of this iteration. Raises WrongOutput for anything else."""
        refuse_other_records(metrics, self.metrics)
        merge_metrics(self.metrics, metrics)

    def _sample(
        self, prompts: Slots, group_size: int, *, sampling: Sampling | None = None
    ) -> tuple[Rollout, Scores]:
        """Samples with their scores.

        Rewards that wait score parts of the samples while the rest is sampled. Only the time they
        take after sampling counts as reward time."""
        key = rng.key(self.plan.seed, "rollout", self.iteration)
        count = max(len(prompts), 1)
        if self.rewards.waits:
            count = max((sampling or self.policy.sampling).max_rows // group_size, 1)
        rollouts, asked = [], []
        stale = self.policy.lagged.staleness > 0
        # Ranks with unequal work have unequal numbers of parts.
        with (
            self.clock.phase("sample"),
            self._weights(prompts) if stale else nullcontext(0) as gap,
            self.policy.summon_full_params(sampling),
        ):
            for start in range(0, len(prompts), count):
                some = list(prompts)[start : start + count]
                rollout = self.policy.sample(
                    [prompts[slot] for slot in some],
                    group_size,
                    key=key,
                    slots=some,
                    sampling=sampling,
                )
                self.clock.tick()
                rollouts.append(rollout)
                rows = rollout.outputs, rollout.prompts, rollout.group
                asked.append(self.rewards.begin(*rows, iteration=self.iteration))
            rollout = concat(rollouts)
            if stale:
                rollout = self._with_age(rollout, gap)
        scores = []
        with self.clock.phase("reward"):
            for answer in asked:
                scores.append(answer())
                self.clock.tick()
        return rollout, map_fields(concat(scores), lambda x: x.to(rollout.mask.device))

    def _weights(self, prompts: Slots) -> AbstractContextManager[int]:
        """A context with the weights for these slots, newest for refills; yields their age."""
        return nullcontext(0) if self.plan.is_refill(prompts) else self.policy.lagging()

    def _with_age(self, rollout: Rollout, gap: int) -> Rollout:
        """The rollout with the age of its weights, which are still available."""
        if gap:
            self.policy.compare_with_sampler(rollout)
        return replace(rollout, version_gap=gap * rollout.mask.long())

    def _encode(
        self, examples: Sequence[Prompt], slots: Sequence[int], *, score: float
    ) -> tuple[Rollout, Scores]:
        key = rng.key(self.plan.seed, "regression", self.iteration)
        rollout = self.policy.encode(examples, key=key, slots=slots)
        total = torch.full((len(examples),), score, device=rollout.mask.device)
        return rollout, Scores(total=total, parts={}, scored=torch.ones_like(total).bool())

    def _take(
        self, rollout: Rollout, scores: Scores, *, baseline: bool = False
    ) -> tuple[Rollout, Scores]:
        if rollout.turn is not None:
            scores = spread_over_moves(scores, rollout, self.rewards)
        self.samples += len(rollout.mask)
        self.steps += int(rollout.own_length.sum())
        if baseline:
            return replace(rollout, baseline=torch.ones_like(rollout.truncated)), scores
        self.taken.append((rollout, scores))
        return rollout, scores


# One group of fresh samples for each prompt
@register_sampling_strategy
def on_policy(source: RolloutSource, prompts: Slots) -> tuple[Rollout, Scores]:
    """A group of samples for each prompt."""
    return source.sample(prompts)
