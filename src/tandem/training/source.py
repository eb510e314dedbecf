"""The rollout source of a training step, and an account of what was taken."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from tandem import rng
from tandem.metrics import Metric, merge_metrics
from tandem.policies.language.sampling import Sampling
from tandem.rewards import Rewards
from tandem.training.batches import BatchPlan
from tandem.training.collect import Slots, slots_of_this_rank
from tandem.types import Prompt, Rollout, Scores, concat, map_fields

BRANCH = 2**40  # between the ids of groups of one slot: more than an iteration has slots


class Clock:
    """Seconds of each phase of an iteration, and when something was done last."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.tick()

    def tick(self) -> None:
        """The run makes progress."""
        self.ticked = time.monotonic()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.tick()
        start = time.perf_counter()
        yield
        self.tick()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


class Iterations:
    """The prompts of each iteration, drawn when it begins and not before. Has a length, so that
    Lightning does not fetch ahead of what the curriculum has learnt."""

    def __init__(self, stream: torch.nn.Module, iterations: range, count: int) -> None:
        self.stream, self.iterations, self.count = stream, iterations, count

    def __len__(self) -> int:
        return len(self.iterations)

    def __iter__(self) -> Iterator[list[Prompt]]:
        return (self.stream.draw(iteration, self.count) for iteration in self.iterations)


class LiveSource:
    """The `RolloutSource` of a live policy: samples, demonstrations and scores of one iteration."""

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
        self.taken: list[tuple[Rollout, Scores]] = []
        self.samples = self.steps = 0  # of this rank, rows that are only compared with too

    def act(self, prompts: Slots) -> tuple[Rollout, Scores]:
        return self._take(*self._scored(prompts, self.plan.group_size))

    def act_greedily(self, prompts: Slots) -> tuple[Rollout, Scores]:
        greedy = replace(self.policy.sampling, temperature=0.0)
        return self._take(*self._scored(prompts, 1, sampling=greedy), baseline=True)

    def act_by_branches(self, prompts: Slots) -> tuple[Rollout, Scores]:
        branches = []
        for number, sampling in enumerate(self.policy.branches()):
            rollout, scores = self._scored(prompts, self.plan.group_size, sampling=sampling)
            group = rollout.group + number * BRANCH
            branches.append((replace(rollout, group=group), scores))
        rollout, scores = (concat(records) for records in zip(*branches, strict=True))
        return self._take(rollout, scores)

    def show(self, prompts: Slots) -> tuple[Rollout, Scores]:
        return self._take(*self._shown(list(prompts.values()), list(prompts), score=1.0))

    def show_pairs(self, prompts: Slots, *, baseline: bool = False) -> tuple[Rollout, Scores]:
        sides = [prompt.sides for prompt in prompts.values()]
        rows = [
            self._shown([both[side] for both in sides], list(prompts), score=1.0 - side)
            for side in (0, 1)
        ]
        rollout, scores = (concat(records) for records in zip(*rows, strict=True))
        return self._take(rollout, scores, baseline=baseline)

    def asked(self) -> Sequence[Prompt]:
        return self.stream.draw(self.iteration, self.plan.prompts_per_step)

    def more(self, round: int) -> Slots:
        count = self.plan.prompts_per_step
        prompts = self.stream.draw(self.iteration, count, round=round)
        return slots_of_this_rank(prompts, first=round * count)

    def note(self, metrics: Mapping[str, Metric]) -> None:
        merge_metrics(self.metrics, metrics)

    def all_taken(self) -> tuple[Rollout, Scores]:
        """All rows of the iteration, also those that a filter left out, but not those that others
        are only compared with."""
        rollouts, scores = zip(*self.taken, strict=True)
        return concat(rollouts), concat(scores)

    def _scored(
        self, prompts: Slots, group_size: int, *, sampling: Sampling | None = None
    ) -> tuple[Rollout, Scores]:
        """Rewards that wait are asked about what there is while the rest is sampled, as the sampler
        cuts it anyway; of the time that takes, what is left when all is sampled is the reward's."""
        key = rng.key(self.plan.seed, "rollout", self.iteration)
        count = max(len(prompts), 1)
        if self.rewards.waits:
            count = max((sampling or self.policy.sampling).max_rows // group_size, 1)
        rollouts, asked = [], []
        # Ranks of unequal work cut it into unequally many parts.
        with self.clock.phase("sample"), self.policy.summon_full_params(sampling):
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
                asked.append(self.rewards.begin(rollout.outputs, rollout.prompts, rollout.group))
        scores, rollout = [], concat(rollouts)
        with self.clock.phase("reward"):
            for answer in asked:
                scores.append(answer())
                self.clock.tick()
        home = rollout.mask.device
        return rollout, map_fields(concat(scores), lambda x: x.to(home))

    def _shown(
        self, examples: Sequence[Prompt], slots: Sequence[int], *, score: float
    ) -> tuple[Rollout, Scores]:
        key = rng.key(self.plan.seed, "regression", self.iteration)
        rollout = self.policy.encode(examples, key=key, slots=slots)
        total = torch.full((len(examples),), score, device=rollout.mask.device)
        return rollout, Scores(total=total, parts={}, scored=torch.ones_like(total).bool())

    def _take(
        self, rollout: Rollout, scores: Scores, *, baseline: bool = False
    ) -> tuple[Rollout, Scores]:
        self.samples += len(rollout.mask)
        self.steps += int(rollout.length.sum())
        if baseline:
            return replace(rollout, baseline=torch.ones_like(rollout.truncated)), scores
        self.taken.append((rollout, scores))
        return rollout, scores
