"""The source of rows sampled by an engine ahead of training."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from tandem import distributed, rng
from tandem.data.stream import DrawnAhead
from tandem.policies.language.records import Sampling
from tandem.rewards import Rewards
from tandem.stop import Abandoned, EngineUnavailable, Stop
from tandem.training.ahead import Ahead, Ticket
from tandem.training.ahead_groups import GroupSampler
from tandem.training.ahead_rows import Sampled, tensors_of_groups, tickets_in
from tandem.training.ahead_threads import GroupThreads
from tandem.training.batches import BatchPlan
from tandem.training.collect import Clock, RolloutSource, Slots, slots_of_this_rank
from tandem.types import Prompt, Rollout, Scores, concat, map_fields

log = logging.getLogger(__name__)
PROBED, PROBE = 4, 16  # answers, and tokens of each, for the guard of the first update


class AheadSource(RolloutSource):
    """Samples and scores groups of later iterations while this one is trained.

    If the main thread samples too (refills, the guard, evaluation), it encodes prompts and starts
    rewards concurrently with the sampling threads: tokenizers and rewards must allow two threads.
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
        """greedy: the greedy answer to each prompt is sampled in addition to its group."""
        super().__init__(policy=policy, rewards=rewards, stream=stream, plan=plan, clock=clock)
        sampling = policy.sampling
        self.queue = Ahead(
            order=sampling.order,
            staleness=sampling.staleness,
            ahead=sampling.iterations_ahead,
            slots=(),  # ranks do not know of each other yet
            iterations=plan.iterations,
        )
        self.groups = GroupSampler(
            policy=policy,
            rewards=rewards,
            stream=stream,
            plan=plan,
            exact=sampling.order == "exact",
            greedy=greedy,
        )
        self.threads = GroupThreads(
            self.queue,
            lambda ticket: self.groups.sample(ticket, enter=self.threads.enter),
            version=self.groups.newest,
            room=max(policy.supply.engine.capacity // plan.group_size, 1),
            check=self._check,
        )
        self.batch_of: int | None = None  # the iteration whose batch was taken
        self.batch: dict[Ticket, list[Sampled]] = {}
        self.seen = 0  # number of complete groups at the last check
        self.probed = False
        self.reproducible = sampling.order == "exact"
        policy.supply.before_refresh = self._hand_over
        stream.wanted = self._iterations_owed

    # Samples for the interface of sampling strategies, and its metrics.

    def _sample(
        self, prompts: Slots, group_size: int, *, sampling: Sampling | None = None
    ) -> tuple[Rollout, Scores]:
        """Rows of the batch of this iteration; further prompts are sampled on demand."""
        number = 0 if sampling is None else 1
        if self.plan.is_refill(prompts):
            return super()._sample(prompts, group_size, sampling=sampling)
        if number > self.groups.greedy:
            raise Stop(
                "greedy answers are sampled ahead for a sampling strategy that declares "
                'gives={"baseline"}; declare it, or set rollout.staleness=0'
            )
        if self.batch_of != self.iteration:
            self._take_batch()
        return self._concat_rows(prompts, number)

    def _take_batch(self) -> None:
        """Request the groups of later iterations, and wait for the batch of this one."""
        self._take_slots()
        supply = self.policy.supply
        # Also after an iteration without an update: a handover is known by its one iteration.
        if supply.behind or self.groups.handed[supply.published] < self.iteration:
            self._hand_over()
        coming = set(range(self.iteration, self.iteration + self.queue.ahead + 1))
        for iteration in coming | self._iterations_owed():
            self.groups.number.setdefault(iteration, supply.published)
        self.threads.admit(self.iteration)
        with self.clock.phase("wait_for_rows"):
            self.batch = self.threads.take(self.iteration)
        self.batch_of = self.iteration
        if self._is_probed():
            self._probe()

    def _iterations_owed(self) -> set[int]:
        """Iterations with groups requested and not trained, also under an earlier larger bound."""
        with self.threads.changed:
            return {ticket.iteration for ticket in (*self.queue.waiting, *self.queue.versions)}

    def _take_slots(self) -> None:
        self.queue.slots = tuple(slots_of_this_rank(range(self.plan.prompts_per_step)))

    def prompts_of_batch(self) -> Sequence[Prompt] | None:
        """The prompts of the batch over all ranks, by group. A collective call."""
        if self.queue.order == "exact":
            return None
        own = [rows[0].rollout.prompts[0] for rows in self.batch.values()]
        by_group = dict(zip(self.queue.slots, own, strict=True))
        every = distributed.all_gather_object([by_group])
        found = {group: prompt for some in every for group, prompt in some.items()}
        return [found[group] for group in range(self.plan.prompts_per_step)]

    @property
    def timing(self) -> dict[str, float]:
        """Seconds without a row in flight, rows requested and not received, groups not trained."""
        return {
            "time/engine_idle": self.threads.pop_idle(),
            "perf/ahead_rows": self.plan.group_size * self.queue.pending,
            "perf/ahead_groups_ready": len(self.queue.there),
        }

    # Weights.

    def _hand_over(self) -> None:
        """Send the engine the weights of this iteration; after its updates, those of the next."""
        supply = self.policy.supply
        drains = self.queue.order == "exact" and supply.handover == "drain"
        # Groups left unfinished by a checkpoint wait for the first weights.
        if drains and self.groups.handed:
            with self.clock.phase("wait_for_rows"):
                self.threads.all_entered()
        begun = self.batch_of == self.iteration  # its updates are done, as the weights have changed
        with self.clock.phase("handover"):
            self.groups.handed[supply.published + 1] = self.iteration + begun
            supply.publish()

    def _check(self) -> None:
        """Raise errors of the handover; arriving rows count as progress."""
        self.policy.supply.journey.check()
        if len(self.threads.rows) != self.seen:
            self.seen = len(self.threads.rows)
            self.clock.tick()

    def _is_probed(self) -> bool:
        """Whether the guard samples in this iteration: in the first one of this process with older
        rows, and not in all, because it waits for a handover, unless adapters are pinned."""
        if not (self.queue.staleness and self.iteration):
            return False
        often = self.policy.supply.handover == "pinned"
        return often or not self.probed or self.iteration % 10 == 0

    # The rows of a batch.

    def _concat_rows(self, prompts: Slots, number: int) -> tuple[Rollout, Scores]:
        """The rows of the batch (0) or its greedy answers (1) in these slots, on one device."""
        rollouts, scores = [], []
        batch = dict(zip(self.queue.slots, self.batch.values(), strict=True))
        with self.clock.phase("reward"):
            for group in prompts:
                rows = batch[group][number]
                age = (self.iteration - rows.versions) * rows.rollout.mask.long()
                own = torch.full_like(rows.rollout.group, group)
                rollouts.append(replace(rows.rollout, group=own, version_gap=age))
                scores.append(rows.scores())
                for judges, faults in rows.faults.items():
                    self.rewards.faults[judges].update(faults)
                self.clock.tick()
        move = partial(to_device, self.policy.device)
        return map_fields(concat(rollouts), move), map_fields(concat(scores), move)

    def _probe(self) -> None:
        """Compare short answers of the newest weights for the guard of the first update: the rows
        to train may all come from older weights."""
        own = slots_of_this_rank(self.stream.prompts_of(self.iteration))
        slot, prompt = next(iter(own.items()))
        sampling = self.policy.sampling
        short = replace(sampling, max_new_tokens=min(sampling.max_new_tokens, PROBE))
        key = rng.key(self.plan.seed, "probe", self.iteration)
        rows = self.policy.sample([prompt], PROBED, key=key, slots=[slot], sampling=short)
        self.policy.compare_with_sampler(rows)
        self.probed = True

    # Checkpoints.

    def state(self, iteration: int) -> dict[str, Tensor]:
        """Adds the complete groups for this and later iterations, the same on all ranks, which each
        write a part; in `exact` it first waits for all requested groups, unless the run is being
        stopped, or resumed and the engine has no weights that could begin them."""
        if self.queue.order == "exact" and self.groups.handed and self.threads.fault is None:
            with suppress(Abandoned, EngineUnavailable):
                self.threads.finish()
        with self.threads.changed:
            there = dict(self.threads.rows)
            unfinished = self.queue.open_tickets
        if self.batch_of == iteration:  # its batch is not trained yet
            there |= self.batch
        own, abandoned = tensors_of_groups(there)
        unfinished = sorted({*unfinished, *abandoned})
        if self.queue.order == "exact" and unfinished:
            log.warning(
                "%d unfinished groups are dropped; the resumed run samples them again with newer "
                "weights",
                len(unfinished),
            )
        own |= super().state(iteration)  # of old groups that this rank alone may still train
        every = distributed.all_gather_object([(own, unfinished)])
        found = {name: x for of_rank, _ in every for name, x in of_rank.items()}
        waiting = [ticket for _, tickets in every for ticket in tickets]
        found["admitted"] = torch.tensor(self.queue.admitted)
        found["unfinished"] = torch.tensor(waiting, dtype=torch.int64).view(-1, 2)
        return found

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.stream.load_state(state)
        if "admitted" not in state:
            return
        self._take_slots()
        there, waiting = tickets_in(state), {Ticket(*x) for x in state["unfinished"].tolist()}
        own = self.queue.share(there | waiting, self.plan.prompts_per_step)
        unfinished = [ticket for ticket in own if ticket in waiting]
        rows = {ticket: self.groups.restore(ticket, state) for ticket in own if ticket in there}
        self.threads.rows = rows
        versions = {ticket: int(own[0].versions[0, 0]) for ticket, own in rows.items()}
        self.queue.restore(versions, unfinished, int(state["admitted"]))


def to_device(device: torch.device, value: Tensor | tuple) -> Tensor | tuple:
    return value.to(device) if isinstance(value, Tensor) else value
