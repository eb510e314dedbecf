"""What a training step offers to a way of collecting, and an account of what was taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

from tandem import draws
from tandem.batches import Plan
from tandem.collect import Slots, slots_of_this_rank
from tandem.metrics import Metric, merge
from tandem.types import Prompt, Rollout, Scores, concat, moved


class Clock:
    """Seconds of each phase of an iteration."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
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
    """Samples, demonstrations and scores of one iteration; `collect.Source` says how to ask."""

    def __init__(
        self,
        *,
        policy: torch.nn.Module,
        rewards: Callable[..., Scores],
        stream: torch.nn.Module,
        plan: Plan,
        clock: Clock,
    ) -> None:
        self.policy, self.rewards, self.stream = policy, rewards, stream
        self.plan, self.clock = plan, clock
        self.begin(0)

    def begin(self, iteration: int) -> None:
        self.iteration = iteration
        self.metrics: dict[str, Metric] = {}
        self.taken: list[tuple[Rollout, Scores]] = []

    def act(self, prompts: Slots) -> tuple[Rollout, Scores]:
        key = draws.key(self.plan.seed, "rollout", self.iteration)
        with self.clock.phase("sample"):
            rollout = self.policy.sample(
                list(prompts.values()), self.plan.group_size, key=key, slots=list(prompts)
            )
        with self.clock.phase("reward"):
            scores = self.rewards(rollout.outputs, rollout.prompts)
        return self._take(rollout, moved(scores, rollout.mask.device))

    def show(self, prompts: Slots) -> tuple[Rollout, Scores]:
        rollout = self.policy.encode(list(prompts.values()), slots=list(prompts))
        one = torch.ones(len(rollout.mask), device=rollout.mask.device)
        return self._take(rollout, Scores(total=one, parts={}, scored=one.bool()))

    def more(self, round: int) -> Slots:
        count = self.plan.prompts_per_step
        prompts = self.stream.draw(self.iteration, count, round=round)
        return slots_of_this_rank(prompts, first=round * count)

    def note(self, metrics: Mapping[str, Metric]) -> None:
        merge(self.metrics, metrics)

    def all_taken(self) -> tuple[Rollout, Scores]:
        """All rows of the iteration, also those that a filter left out."""
        rollouts, scores = zip(*self.taken, strict=True)
        return concat(rollouts), concat(scores)

    def _take(self, rollout: Rollout, scores: Scores) -> tuple[Rollout, Scores]:
        self.taken.append((rollout, scores))
        return rollout, scores
