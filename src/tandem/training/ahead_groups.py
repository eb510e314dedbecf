"""The sampler of groups ahead of training, one group per ticket."""

from __future__ import annotations

import functools
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from tandem import rng
from tandem.data.stream import DrawnAhead
from tandem.policies.engines.weight_sync import BegunRows
from tandem.policies.language.records import Questions
from tandem.policies.language.sampling import as_rollout
from tandem.rewards import Rewards
from tandem.training.ahead import Ticket
from tandem.training.ahead_rows import Sampled, restore_group
from tandem.training.batches import BatchPlan

HERE = torch.device("cpu")  # device of rows until they are trained


class GroupSampler:
    """Samples groups in threads, of which one at a time encodes prompts, decodes answers and starts
    rewards."""

    def __init__(
        self,
        *,
        policy: nn.Module,
        rewards: Rewards,
        stream: DrawnAhead,
        plan: BatchPlan,
        exact: bool,
        greedy: bool,
    ) -> None:
        """exact: rows are begun with the weights of their own iteration; greedy: the greedy answer
        to each prompt is sampled in addition to its group."""
        self.policy, self.rewards, self.stream, self.plan = policy, rewards, stream, plan
        self.exact, self.greedy, self.reading = exact, greedy, threading.Lock()
        self.handed: dict[int, int] = {}  # handover -> iteration that starts with its weights
        self.number: dict[int, int] = {}  # iteration -> handover whose weights begin its rows

    def newest(self) -> int:
        """The iteration that starts with the weights of the engine."""
        first = min(self.handed)  # the engine waits for this one
        return self.handed[max(self.policy.supply.given, first)]

    def sample(self, ticket: Ticket, *, enter: Callable[[Ticket], None]) -> list[Sampled]:
        """The rows of a group; calls `enter` once the group has its weights."""
        # Unknown for a group from a checkpoint if the run is stopped before its first iteration.
        newest = self.policy.supply.published
        handover = self.number.setdefault(ticket.iteration, newest) if self.exact else None
        with self.policy.supply.under_way(handover) as engine:
            enter(ticket)
            return [self._sample_rows(engine, ticket, number) for number in range(1 + self.greedy)]

    def _sample_rows(self, engine: BegunRows, ticket: Ticket, number: int) -> Sampled:
        with self.reading:
            asked = self._question(ticket, number)
        answers = engine.answer(
            asked.encoded, asked.keys, sampling=asked.sampling, endings=asked.endings
        )
        with self.reading:
            rollout = as_rollout(asked, answers, self.policy.chat)
            rows = rollout.outputs, rollout.prompts, rollout.group
            # Not those of `rewards`, which an evaluation may read before the rows are trained.
            faults = defaultdict(Counter)
            judged = self.rewards.begin(*rows, iteration=ticket.iteration, faults=faults)
        given = torch.full_like(answers.tokens, engine.number)
        numbers = given if answers.version is None else answers.version
        versions = torch.zeros_like(numbers)
        for handover in numbers[rollout.mask].unique().tolist():
            versions[numbers == handover] = self.handed[handover]
        return Sampled(
            rollout=rollout,
            answers=answers,
            versions=versions,
            scores=functools.cache(judged),
            faults=faults,
        )

    def _question(self, ticket: Ticket, number: int) -> Questions:
        """The request for the group of a ticket (0) or the greedy answer to its prompt (1)."""
        sampling = self.policy.sampling
        return self.policy.ask(
            [self.stream.prompts_of(ticket.iteration)[ticket.slot]],
            [ticket.slot],
            group_size=1 if number else self.plan.group_size,
            key=rng.key(self.plan.seed, "rollout", ticket.iteration),
            sampling=replace(sampling, temperature=0.0) if number else sampling,
            device=HERE,
        )

    def restore(self, ticket: Ticket, state: Mapping[str, Tensor]) -> list[Sampled]:
        """The rows of a group in a checkpoint. Tensors of any shape [...]."""
        asked = [self._question(ticket, number) for number in range(1 + self.greedy)]
        read = [partial(as_rollout, question, chat=self.policy.chat) for question in asked]
        names = list(self.rewards.components)
        return [
            restore_group(ticket, number, state, each, names) for number, each in enumerate(read)
        ]
