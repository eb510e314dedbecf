"""The source of rows that an engine samples ahead of training."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from tandem import distributed, rng
from tandem.algorithm.algorithm import Algorithm
from tandem.contracts import facts_of
from tandem.data.stream import DrawnAhead, PromptStream
from tandem.policies.engines.weight_sync import BegunRows
from tandem.policies.language.records import Questions
from tandem.rewards import Rewards
from tandem.stop import Abandoned, EngineUnavailable
from tandem.training.ahead import Ahead, Ticket
from tandem.training.ahead_rows import Sampled, restored, stored_of, tickets_in
from tandem.training.ahead_threads import GroupThreads
from tandem.training.batches import BatchPlan
from tandem.training.collect import Clock, RolloutSource, Slots, slots_of_this_rank
from tandem.types import Prompt, Rollout, Scores, concat, map_fields

log = logging.getLogger(__name__)
HERE = torch.device("cpu")  # rows lie there until they are trained
PROBED, PROBE = 4, 16  # answers, and tokens of them, that the guard of the first update judges


class AheadSource(RolloutSource):
    """Groups of later iterations are sampled, and their rewards asked, while this one is trained.

    A thread samples a group; one of them at a time encodes prompts, reads answers and begins
    rewards. The main thread does so beside them where it samples itself (refills, the guard,
    evaluation), so tokenizers and rewards must bear two threads.
    """

    def __init__(
        self,
        *,
        policy: nn.Module,
        rewards: Rewards,
        stream: DrawnAhead,
        plan: BatchPlan,
        clock: Clock,
        greedy: bool = False,
    ) -> None:
        """greedy: the likeliest answer to each prompt is sampled beside its group."""
        super().__init__(policy=policy, rewards=rewards, stream=stream, plan=plan, clock=clock)
        sampling = policy.sampling
        self.queue = Ahead(
            order=sampling.order,
            staleness=sampling.staleness,
            ahead=sampling.iterations_ahead,
            slots=(),  # ranks do not know of each other yet
            iterations=plan.iterations,
        )
        self.threads = GroupThreads(
            self.queue,
            self._sample_group,
            version=self._arrived,
            room=max(policy.supply.engine.capacity // plan.group_size, 1),
            check=self._check,
        )
        self.greedy, self.reading = greedy, threading.Lock()
        self.batch_of: int | None = None  # the iteration whose batch was taken
        self.batch: dict[Ticket, list[Sampled]] = {}
        self.seen = 0  # groups that were there when somebody looked
        self.handed: dict[int, int] = {}  # handover -> iteration that began with its weights
        self.number: dict[int, int] = {}  # iteration -> handover that its rows are begun with
        policy.supply.before_refresh = self._hand_over
        stream.wanted = self._iterations_owed

    # What a sampling strategy asks, and what is known of it.

    def sample(self, prompts: Slots) -> tuple[Rollout, Scores]:
        """The batch of this iteration; whatever else is wanted is asked for on demand."""
        if self.batch_of == self.iteration:
            return super().sample(prompts)
        self._take_slots()
        if self.policy.supply.behind:
            self._hand_over()
        coming = set(range(self.iteration, self.iteration + self.queue.ahead + 1))
        for iteration in coming | self._iterations_owed():
            self.number.setdefault(iteration, self.policy.supply.published)
        self.threads.admit(self.iteration)
        with self.clock.phase("wait_for_rows"):
            self.batch = self.threads.take(self.iteration)
        self.batch_of = self.iteration
        if self._is_probed():
            self._probe()
        return self._take(*self._joined(0))

    def _iterations_owed(self) -> set[int]:
        """Those with groups that were asked for and not trained, of a larger bound before too."""
        with self.threads.changed:
            return {ticket.iteration for ticket in (*self.queue.waiting, *self.queue.versions)}

    def _take_slots(self) -> None:
        self.queue.slots = tuple(slots_of_this_rank(range(self.plan.prompts_per_step)))

    def sample_greedily(self, prompts: Slots) -> tuple[Rollout, Scores]:
        return self._take(*self._joined(1), baseline=True)

    def asked(self, prompts: Sequence[Prompt]) -> Sequence[Prompt]:
        """The prompts of the batch on all ranks, by group."""
        if self.queue.order == "exact":
            return prompts
        own = [rows[0].rollout.prompts[0] for rows in self.batch.values()]
        by_group = dict(zip(self.queue.slots, own, strict=True))
        every = distributed.all_gather_object([by_group])
        found = {group: prompt for some in every for group, prompt in some.items()}
        return [found[group] for group in range(len(prompts))]

    @property
    def timing(self) -> dict[str, float]:
        """Seconds without a row under way, the rows that an engine was asked for and owes, and the
        groups that wait to be trained."""
        owed = self.plan.group_size * self.queue.pending
        there = len(self.queue.there)
        idle = self.threads.pop_idle()
        return {
            "time/engine_idle": idle,
            "perf/ahead_rows": owed,
            "perf/ahead_groups_ready": there,
        }

    # Weights.

    def _hand_over(self) -> None:
        """Send the engine the weights of this iteration, or, between two, those of the next one."""
        supply = self.policy.supply
        drains = self.queue.order == "exact" and supply.handover == "drain"
        if drains and self.handed:  # what a checkpoint left unfinished waits for the first weights
            with self.clock.phase("wait_for_rows"):
                self.threads.all_entered()
        begun = self.batch_of == self.iteration  # and is over, as the weights have moved
        with self.clock.phase("handover"):
            self.handed[supply.published + 1] = self.iteration + begun
            supply.publish()

    def _check(self) -> None:
        """Raise what became of the handover; rows that arrive are progress."""
        self.policy.supply.journey.check()
        if len(self.threads.rows) != self.seen:
            self.seen = len(self.threads.rows)
            self.clock.tick()

    def _arrived(self) -> int:
        """The iteration that began with the weights that the engine has."""
        first = min(self.handed)  # which is waited for
        return self.handed[max(self.policy.supply.given, first)]

    def _is_probed(self) -> bool:
        """Whether the guard asks in this iteration: to wait for a handover costs time, unless
        adapters are pinned."""
        if not self.queue.staleness:
            return False
        pinned = self.policy.supply.handover == "pinned"
        return self.iteration == 1 or self.iteration > 0 == self.iteration % (1 if pinned else 10)

    # The rows of a group, and of a batch.

    def _sample_group(self, ticket: Ticket) -> list[Sampled]:
        exact = self.queue.order == "exact"
        begun = self.policy.supply.under_way(self.number[ticket.iteration] if exact else None)
        with begun as engine:
            self.threads.enter(ticket)
            return [self._sampled(engine, ticket, number) for number in range(1 + self.greedy)]

    def _sampled(self, engine: BegunRows, ticket: Ticket, number: int) -> Sampled:
        with self.reading:
            asked = self._question(ticket, number)
        answers = engine.answer(
            asked.encoded, asked.keys, sampling=asked.sampling, endings=asked.endings
        )
        with self.reading:
            rollout = self.policy.read(asked, answers)
            rows = rollout.outputs, rollout.prompts, rollout.group
            judged = self.rewards.begin(*rows, iteration=ticket.iteration)
        given = torch.full_like(answers.tokens, engine.number)
        numbers = given if answers.version is None else answers.version
        versions = torch.zeros_like(numbers)
        for handover in numbers[rollout.mask].unique().tolist():
            versions[numbers == handover] = self.handed[handover]
        scores = functools.cache(judged)
        return Sampled(rollout=rollout, answers=answers, versions=versions, scores=scores)

    def _question(self, ticket: Ticket, number: int) -> Questions:
        """The group of a ticket (0), or the likeliest answer to its prompt (1)."""
        sampling = self.policy.sampling
        return self.policy.ask(
            [self.stream.drawn(ticket.iteration)[ticket.slot]],
            1 if number else self.plan.group_size,
            key=rng.key(self.plan.seed, "rollout", ticket.iteration),
            slots=[ticket.slot],
            sampling=replace(sampling, temperature=0.0) if number else sampling,
            device=HERE,
        )

    def _joined(self, number: int) -> tuple[Rollout, Scores]:
        """The rows of the batch, or what they are compared with, on the device of the policy."""
        rollouts, scores = [], []
        with self.clock.phase("reward"):
            for group, sampled in zip(self.queue.slots, self.batch.values(), strict=True):
                rows = sampled[number]
                age = (self.iteration - rows.versions) * rows.rollout.mask.long()
                own = torch.full_like(rows.rollout.group, group)
                rollouts.append(replace(rows.rollout, group=own, version_gap=age))
                scores.append(rows.scores())
                self.clock.tick()
        move = partial(on, self.policy.device)
        return map_fields(concat(rollouts), move), map_fields(concat(scores), move)

    def _probe(self) -> None:
        """Short answers of the newest weights, for the guard of the first update: those that are
        trained may all be of older ones."""
        own = slots_of_this_rank(self.stream.drawn(self.iteration))
        slot, prompt = next(iter(own.items()))
        short = min(self.policy.sampling.max_new_tokens, PROBE)
        rows = self.policy.sample(
            [prompt],
            PROBED,
            key=rng.key(self.plan.seed, "probe", self.iteration),
            slots=[slot],
            sampling=replace(self.policy.sampling, max_new_tokens=short),
        )
        self.policy.compare_with_sampler(rows)

    # What is left of them in a checkpoint.

    def state(self, iteration: int) -> dict[str, Tensor]:
        """And the groups of all ranks that are there for this iteration and later ones; in `exact`
        all that were asked for, unless the run ends in a hurry."""
        if self.queue.order == "exact" and self.threads.fault is None:
            with suppress(Abandoned, EngineUnavailable):
                self.threads.finish()
        with self.threads.changed:
            there = dict(self.threads.rows)
            unfinished = self.queue.unfinished
        if self.batch_of == iteration:  # it is not trained yet
            there |= self.batch
        own, abandoned = stored_of(there)
        unfinished = sorted({*unfinished, *abandoned})
        if self.queue.order == "exact" and unfinished:
            log.warning(
                "%d groups that were under way are dropped, and asked for again with newer "
                "weights by the run that goes on",
                len(unfinished),
            )
        every = distributed.all_gather_object([(own, unfinished)])
        found = {name: x for of_rank, _ in every for name, x in of_rank.items()}
        waiting = [ticket for _, tickets in every for ticket in tickets]
        found["admitted"] = torch.tensor(self.queue.admitted)
        found["unfinished"] = torch.tensor(waiting, dtype=torch.int64).view(-1, 2)
        return super().state(iteration) | found

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.stream.load_state(state)
        if "admitted" not in state:
            return
        self._take_slots()
        tickets = [ticket for ticket in tickets_in(state) if ticket.slot in self.queue.slots]
        pairs = [Ticket(*pair) for pair in state["unfinished"].tolist()]
        unfinished = [ticket for ticket in pairs if ticket.slot in self.queue.slots]
        rows = {ticket: self._restored(ticket, state) for ticket in tickets}
        self.threads.rows = rows
        versions = {ticket: int(own[0].versions[0, 0]) for ticket, own in rows.items()}
        self.queue.restore(versions, unfinished, int(state["admitted"]))

    def _restored(self, ticket: Ticket, state: Mapping[str, Tensor]) -> list[Sampled]:
        asked = [self._question(ticket, number) for number in range(1 + self.greedy)]
        read = [partial(self.policy.read, question) for question in asked]
        return [restored(ticket, number, state, each) for number, each in enumerate(read)]


def on(device: torch.device, value: Tensor | tuple) -> Tensor | tuple:
    return value.to(device) if isinstance(value, Tensor) else value


def source_of(
    algorithm: Algorithm,
    *,
    policy: nn.Module,
    rewards: Rewards,
    stream: PromptStream,
    plan: BatchPlan,
    clock: Clock,
) -> RolloutSource:
    """The source of the rows of a run, by who samples and how far ahead."""
    if not policy.lagged.staleness:
        return RolloutSource(policy=policy, rewards=rewards, stream=stream, plan=plan, clock=clock)
    sampling = policy.sampling
    drawn = DrawnAhead(stream, ahead=sampling.iterations_ahead, kept=sampling.staleness)
    if not policy.samples_ahead:
        return RolloutSource(policy=policy, rewards=rewards, stream=drawn, plan=plan, clock=clock)
    greedy = "baseline" in facts_of(algorithm.sampling_strategy).gives
    return AheadSource(
        policy=policy, rewards=rewards, stream=drawn, plan=plan, clock=clock, greedy=greedy
    )
