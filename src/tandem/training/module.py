"""One training step, written as the papers write it; Lightning's hooks are in `lightning_hooks`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from tandem import distributed, rng
from tandem.algorithm.algorithm import Algorithm
from tandem.algorithm.coupled import has_signal
from tandem.algorithm.objective import Objective, Outcome
from tandem.contracts.outputs import join_metrics
from tandem.experience import Experience, even_parts, split_groups
from tandem.metrics import (
    Metric,
    Sum,
    merge_metrics,
    reduce_metrics,
    response_metrics,
    reward_metrics,
)
from tandem.policies.base import is_fresh
from tandem.policies.weights import clip_gradients
from tandem.rewards.images import diversity
from tandem.rewards.result import failures
from tandem.settings.guards import STALE, Guards, warn_of_judges
from tandem.stop import Stop
from tandem.training.batches import BatchPlan, needs_of
from tandem.training.collect import Clock, slots_of_this_rank
from tandem.training.episode_rows import episode_metrics
from tandem.training.lightning_hooks import COUNTERS, LightningHooks
from tandem.training.sources import source_of
from tandem.types import Prompt, Rollout, Scores, concat, take

PATIENCE = 1.5  # updates end at 1.5 times target_kl, as in Stable Baselines3


class PostTraining(LightningHooks):
    """The training step: collect, complete, compare, update. It is the same for every algorithm."""

    def __init__(
        self,
        *,
        policy: torch.nn.Module,
        algorithm: Algorithm,
        rewards: Callable[..., Scores],
        stream: torch.nn.Module,
        optimizer: Callable[..., torch.optim.Optimizer],
        schedule: Callable[[int, int], float],
        plan: BatchPlan,
        guards: Guards,
        folder: Path,
        make_stream: Callable[[], torch.nn.Module] | None = None,
        inputs: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(make_stream, inputs)
        self.policy, self.algorithm, self.rewards, self.stream = policy, algorithm, rewards, stream
        self.optimizer, self.schedule, self.plan = optimizer, schedule, plan
        self.guards, self.folder = guards, folder
        self.needs = needs_of(algorithm, plan)
        self.clock = Clock()
        self.source = source_of(
            algorithm, policy=policy, rewards=rewards, stream=stream, plan=plan, clock=self.clock
        )
        self.iteration = self.samples_seen = self.steps_seen = 0
        self.flat_iterations = self.full_iterations = self.skipped = self.skipped_in_a_row = 0
        self.start_of_iteration()

    def training_step(self, prompts: Sequence[Prompt], batch_idx: int) -> None:
        self.start_of_iteration()
        rollout, scores = self.algorithm.sampling_strategy(self.source, slots_of_this_rank(prompts))
        if self.source.taken[0][1].all_parts:  # not of demonstrations
            self.check_rewards()
        self.fresh = is_fresh(rollout)
        if not self.fresh and not self.algorithm.corrects:
            raise Stop(STALE)
        with self.clock.phase("complete"):
            rollout = self.policy.complete(rollout, self.needs)
        experience = self.algorithm.experience(scores, rollout)
        with self.clock.phase("train"):
            for minibatch in self.minibatches(experience):
                minibatch = self.objective.add_statistics(self.policy, minibatch, self.plan.budget)
                for rows in self.microbatches(minibatch):
                    self.accumulate(self.objective(self.policy, rows))
                if self.moved_too_far():
                    break
                self.update(minibatch)
        self.end_of_iteration(prompts, experience)

    # The split into mini-batches and micro-batches.

    def minibatches(self, experience: Experience) -> Iterator[Experience]:
        """Whole groups with their weights, one optimiser step each; equally many on all ranks."""
        rows, plan = experience, self.plan
        for epoch in range(plan.epochs):
            if epoch:
                again = self.policy.resample_noise(experience.rollout, epoch)
                rows = replace(experience, rollout=again)
            key = rng.key(plan.seed, "minibatches", self.iteration, epoch)
            for minibatch in split_groups(rows, plan.num_minibatches, key):
                yield replace(minibatch, weights=self.objective.weigh(minibatch))

    def microbatches(self, minibatch: Experience) -> Iterator[Experience]:
        """Parts of a mini-batch, equally many on all ranks (padded at weight 0), to save memory."""
        parts = even_parts(
            minibatch,
            self.policy.row_cost(minibatch.rollout),
            self.plan.budget,
            zero_at_zero_advantage=self.objective.zero_at_zero_advantage,
            whole_groups=self.objective.whole_groups,
        )
        for left, rows in zip(reversed(range(len(parts))), parts, strict=True):
            self.micro_steps_left = left
            yield rows

    def accumulate(self, outcome: Outcome) -> None:
        """Add one micro-batch to the gradient; only the last one synchronises the ranks."""
        # DDP and FSDP average gradients over ranks; weights are already those of the whole update.
        self.clock.tick(together=True)
        loss = outcome.loss * distributed.world_size()
        with nullcontext() if self.micro_steps_left == 0 else self.no_sync():
            self.manual_backward(loss)
        for name, share in outcome.parts.items():
            self.losses[name] = self.losses.get(name, 0) + share
        merge_metrics(self.of_update, outcome.metrics)

    def moved_too_far(self) -> bool:
        """Whether the KL to the old policy ends the updates of this iteration, on all ranks. It is
        measured before the step, so the first update is always made."""
        target = self.algorithm.target_kl
        if target is None or not self.updates_done:
            return False
        drift = reduce_metrics(self.of_update).get("actor/approx_kl_k3", 0.0)
        too_far = drift > PATIENCE * target  # NaN is left to `update`, which handles it
        if too_far:
            self.optimizers().zero_grad()
        return too_far

    def update(self, minibatch: Experience) -> None:
        """Clip the gradient and make an optimiser step, unless a loss or the norm is not finite."""
        later = self.objective.of_first_update if self.updates_done else ()
        merge_metrics(self.metrics, {n: x for n, x in self.of_update.items() if n not in later})
        optimizer = self.optimizers()
        if self.policy_rests:
            for parameter in self.policy.groups()["policy"]:
                parameter.grad = None  # the optimiser then skips it, including weight decay
        parts = [group["params"] for group in optimizer.param_groups]
        parameters = [p for part in parts for p in part]
        unlike = self.algorithm.segments or self.algorithm.networks  # their gradients' sizes
        norm = clip_gradients(parts if unlike else [parameters], self.plan.max_grad_norm)
        # One decision for all ranks: losses are per rank until they are logged.
        finite = torch.stack([norm, *self.losses.values()]).isfinite().all()  # one wait for a GPU
        if distributed.all_max((~finite).float()) == 0:
            if not (self.updates_done or self.algorithm.reads_errors):  # of no sampler
                seen = reduce_metrics(self.metrics)
                self.guards.check_first_update(seen, self.policy, fresh=self.fresh)
            self.boundary = None
            optimizer.step()
            self.guards.check_weights(parameters, self.iteration, optimizer.param_groups[0]["lr"])
            self.policy.notify("update")
            self.skipped_in_a_row = 0
        else:
            self.skip(minibatch, norm)
        optimizer.zero_grad()
        one, share = torch.ones_like(norm), torch.full_like(norm, 1 / distributed.world_size())
        per_update = {f"loss/{name}": Sum(loss, share) for name, loss in self.losses.items()}
        merge_metrics(self.of_steps, per_update | {"optim/grad_norm": Sum(norm, one)})
        self.losses, self.of_update, self.updates_done = {}, {}, self.updates_done + 1

    # Around the loop.

    def start_of_iteration(self) -> None:
        self.source.begin(self.iteration)
        algorithm = self.algorithm
        memory = {name: part.state_dict() for name, part in algorithm.memory.items()}
        self.boundary = deepcopy(memory), {name: getattr(self, name) for name in COUNTERS}
        # In some iterations only a critic or another network learns.
        self.policy_rests = algorithm.rests(self.iteration)
        self.objective: Objective = (
            algorithm.resting_objective if self.policy_rests else algorithm.training_objective
        )
        self.clock.seconds.clear()
        self.metrics, self.of_steps = dict[str, Metric](), dict[str, Metric]()
        self.of_update: dict[str, Metric] = {}  # not merged yet: a stopped update never counts
        self.losses: dict[str, Tensor] = {}
        self.updates_done = 0

    def end_of_iteration(self, prompts: Sequence[Prompt], experience: Experience) -> None:
        self.boundary = None
        self.rollout, self.scores = (concat(x) for x in zip(*self.source.taken, strict=True))
        rollout, scores = distributed.gather(self.rollout), distributed.gather(self.scores)
        taken = torch.tensor([self.source.samples, self.source.steps])
        samples, steps = distributed.all_sum(taken).tolist()
        self.samples_seen, self.steps_seen = self.samples_seen + samples, self.steps_seen + steps
        measured = join_metrics(self.metrics, self.of_steps, self.source.metrics)
        outputs = self.rollout.outputs
        if self.rollout.key is not None and outputs and isinstance(outputs[0], Tensor):
            measured["response/diversity"] = diversity(outputs, self.rollout.group)
        if rollout.feedback is not None:  # demonstrations have no feedback
            measured |= episode_metrics(self.rollout)
        of_updates = {"optim/updates": self.updates_done, "optim/skipped": self.skipped}
        of_updates["optim/lr"] = self.optimizers().param_groups[0]["lr"]
        self.report = join_metrics(reduce_metrics(measured), response_metrics(rollout), of_updates)
        self.report = join_metrics(self.report, self.algorithm.report(experience, self.report))
        if scores.all_parts:
            self.learn_from(prompts, rollout, scores)
        if not self.policy_rests:
            self.algorithm.observe(self.report, samples)
            renewal = self.algorithm.kl.renewal
            if renewal is not None and renewal.is_due(self.report.get("actor/ref_kl", 0.0)):
                self.policy.renew_reference()
        self.policy.notify("iteration")
        self.iteration += 1
        self.boundary = ({}, {})

    def check_rewards(self) -> None:
        """Measure how many samples have no reward. Raises Stop if they are too many."""
        scored = distributed.gather(torch.cat([scores.scored for _, scores in self.source.taken]))
        missing = 1 - scored.double().mean().item()
        self.missing, faults = {"reward/missing": missing}, Counter(self.rewards.pop_faults())
        if missing > 0:  # on any rank, so that all of them log the reasons
            faults = sum(distributed.all_gather_object([faults]), Counter())
            self.missing["reward/faults"] = sum(failures(faults).values())
            self.guards.check_missing(missing, faults)

    def learn_from(self, prompts: Sequence[Prompt], rollout: Rollout, scores: Scores) -> None:
        """Log reward metrics, count iterations without a signal, and update the curriculum."""
        self.report = join_metrics(self.report, self.missing, reward_metrics(scores, rollout))
        if scores.judges:
            failed = torch.tensor(warn_of_judges(failures(self.rewards.pop_faults(judges=True))))
            self.report["reward/judge_faults"] = distributed.all_sum(failed).item()
        top, seen, by_scores = self.rewards.full, self.report, self.algorithm.learns_from_scores
        flat = not has_signal(seen, by_scores, skips=self.objective.zero_at_zero_advantage)
        self.flat_iterations = self.flat_iterations + 1 if flat else 0
        best = [seen.get(f"reward/{n}/mean", 0) >= top.get(n, torch.inf) for n in scores.parts]
        alike = not any(seen.get(f"reward/{n}/std", 0) for n in scores.parts)
        full = flat and any(best) and all(best) and alike and seen["reward/missing"] == 0
        self.full_iterations = self.full_iterations + 1 if full else 0
        if scores.parts and self.stream.observe is not None:
            prompts = self.source.prompts_of_batch() or prompts
            main = (rollout.group < len(prompts)).nonzero()[:, 0]  # refills have other odds
            asked = [prompts[slot] for slot in rollout.group[main].tolist()]
            self.stream.observe([p.source for p in asked], take(scores, main).part(None, asked))
