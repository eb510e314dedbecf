"""An optimiser step: gradients, norms, averages, groups."""

from dataclasses import replace
from functools import partial
from itertools import count

import pytest
import torch
from loop import PLAN, EndsInTwo, Loop
from records import GRPO, rollout

from tandem.advantages.temporal import gae_returns, generalised
from tandem.algorithm.critic import Critic
from tandem.losses.critic import value_loss
from tandem.policies.base import is_fresh
from tandem.settings.guards import Guards
from tandem.training import strategies

CRITIC = Critic(coef=0.5, loss=value_loss, returns=gae_returns, lr=0.5, warmup=0)
ACTOR_CRITIC = replace(GRPO, advantage=generalised, critic=CRITIC)
ONE = replace(PLAN, num_minibatches=1, epochs=1)


class Watched(Loop):
    """Records the gradients and groups of each update, and how far it moved each parameter."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.groups, self.norms, self.moved = [], [], []

    def update(self, minibatch) -> None:
        trained = [p for p in self.policy.parameters() if p.grad is not None]
        before = [p.detach().clone() for p in trained]
        self.norms.append([float(p.grad.norm()) for p in trained])
        self.groups.append(frozenset(minibatch.rollout.group.tolist()))
        super().update(minibatch)
        self.moved.append([float((p - b).norm()) for p, b in zip(trained, before, strict=True)])


def test_updates_that_a_drift_ends_leave_no_gradient_to_the_next_iteration(tmp_path):
    loop = Loop(algorithm=replace(GRPO, target_kl=1e-6), folder=tmp_path).go()
    assert loop.report["optim/updates"] < PLAN.updates
    gradient = loop.policy.table.grad
    assert gradient is None or not gradient.any()


def test_the_norm_that_is_clipped_is_that_of_policy_and_critic_together(tmp_path):
    plan = replace(ONE, max_grad_norm=1e-2)
    loop = Watched(algorithm=ACTOR_CRITIC, plan=plan, folder=tmp_path).go()
    [(policy, critic)] = loop.norms
    together = (policy**2 + critic**2) ** 0.5
    assert min(policy, critic) > 0.1 * together
    assert loop.report["optim/grad_norm"] == pytest.approx(together)
    want = [1.0 * 1e-2 * policy / together, 0.5 * 1e-2 * critic / together]  # rate, clipped
    assert loop.moved[0] == pytest.approx(want, rel=1e-4)


def test_averages_follow_the_updates_that_were_made_and_no_skipped_one(tmp_path):
    calls = count()

    def poisoned_once(batch):
        # The checks of a loss call it without gradient.
        poisoned = torch.is_grad_enabled() and next(calls) == 1
        return batch.logp * (torch.nan if poisoned else 1)

    told = []
    loop = Loop(
        folder=tmp_path,
        algorithm=replace(GRPO, loss=poisoned_once),
        guards=Guards(non_finite="skip:3"),
    )
    loop.policy.notify = lambda event: told.extend([loop.updates_done] * (event == "update"))
    assert loop.go().report["optim/skipped"] == 1
    assert told == [0, 2, 3]


def test_each_epoch_cuts_the_groups_anew(tmp_path):
    loop = Watched(folder=tmp_path).go(3)
    epochs = [loop.groups[at : at + 2] for at in range(0, 12, 2)]
    assert all(first | second == frozenset(range(6)) for first, second in epochs)
    cuts = [frozenset(epoch) for epoch in epochs]
    assert sum(one != other for one, other in zip(cuts[::2], cuts[1::2], strict=True)) >= 2


@pytest.mark.parametrize(("gap", "fresh"), [([[0, 0], [0, 3]], False), ([[0, 0], [0, 0]], True)])
def test_a_batch_is_as_old_as_its_oldest_step(gap, fresh):
    rows = rollout(torch.ones(2, 2, dtype=torch.bool), torch.arange(2))
    assert is_fresh(replace(rows, version_gap=torch.tensor(gap).float())) is fresh


def test_of_surplus_groups_those_that_were_drawn_first_are_kept(tmp_path):
    algorithm = replace(GRPO, sampling_strategy=partial(strategies.dynamic_sampling, max_rounds=9))
    loop = Loop(algorithm=algorithm, folder=tmp_path, rewards=EndsInTwo())
    kept, _ = algorithm.sampling_strategy(loop.source, dict(enumerate(loop.stream.draw(0, 6))))
    varied = []
    for rows, scores in loop.source.taken:
        for group in rows.group.unique():
            said = scores.total[rows.group == group]
            varied += [int(group)] * int(said.min() < said.max())
    assert len(varied) > 6
    assert kept.group[kept.mask.any(1)].unique().tolist() == sorted(varied)[:6]
