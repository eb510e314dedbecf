"""The gradient of an update, term by term, compared with a computation by hand."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from at_once import AtOnce
from loop import PLAN, EndsInTwo, Loop, ShareOfThrees
from records import GRPO
from torch import Tensor
from torch.testing import assert_close
from two_ranks import on_both

from tandem import rng
from tandem.advantages import shaping
from tandem.algorithm.regularizers import EntropyBonus, KLInLoss
from tandem.losses import reduction
from tandem.losses.kl import k2, k3, k3_plus, k3_unbiased
from tandem.settings.guards import Guards
from tandem.training import strategies
from tandem.types import Rollout, Scores

ONCE = replace(PLAN, num_minibatches=1, epochs=1)
TIED = {"rewards": ShareOfThrees(value=1.0), "guards": Guards(no_signal=99)}  # no policy gradient


def first_rows(loop: Loop) -> Rollout:
    """The samples of the first iteration."""
    prompts = loop.stream.draw(0, loop.plan.prompts_per_step)
    key = rng.key(loop.plan.seed, "rollout", 0)
    return loop.policy.sample(prompts, loop.plan.group_size, key=key, slots=range(len(prompts)))


def mean_of_means(x: Tensor, mask: Tensor) -> Tensor:
    """The mean over the steps of each sample, then over the samples with a step."""
    return torch.stack(
        [row[own].mean() for row, own in zip(x, mask, strict=True) if own.any()]
    ).mean()


def slope(loop: Loop, x: Tensor) -> Tensor:
    return torch.autograd.grad(x, loop.policy.table)[0]


@pytest.mark.parametrize("plan", [ONCE, replace(ONCE, epochs=2)], ids=["one update", "two"])
@pytest.mark.parametrize("penalty", [k2, k3_plus, k3_unbiased])
def test_a_kl_pulls_towards_the_frozen_reference(penalty, plan, tmp_path):
    algorithm = replace(GRPO, kl=KLInLoss(coef=0.1, loss=penalty))
    loop = Loop(algorithm=algorithm, plan=plan, folder=tmp_path, **TIED)
    rows = first_rows(loop)
    logp = loop.policy.logp_under(rows.sample, loop.policy.table)
    apart = (logp - loop.policy.logp_under(rows.sample, loop.policy.reference)).detach()
    # x grad log p, also of k3 times its ratio: (k3 + d k3 / dx) grad log p, and the exponentials
    # of k3 = exp(-x) + x - 1 and of its slope 1 - exp(-x) cancel.
    want = slope(loop, 0.1 * mean_of_means(apart * logp, rows.mask))
    assert_close(loop.go().gradients[0], want)


def test_plain_k3_pulls_as_it_was_published(tmp_path):
    algorithm = replace(GRPO, kl=KLInLoss(coef=0.1, loss=k3))
    loop = Loop(algorithm=algorithm, plan=ONCE, folder=tmp_path, **TIED)
    rows = first_rows(loop)
    logp = loop.policy.logp_under(rows.sample, loop.policy.table)
    ratio = (loop.policy.logp_under(rows.sample, loop.policy.reference) - logp).exp()
    want = slope(loop, 0.1 * mean_of_means(ratio - ratio.log() - 1, rows.mask))
    assert_close(loop.go().gradients[0], want)


def test_a_bonus_raises_the_entropy_of_the_whole_distribution(tmp_path):
    algorithm = replace(GRPO, entropy=EntropyBonus(coef=0.05))
    loop = Loop(algorithm=algorithm, plan=ONCE, folder=tmp_path, **TIED)
    rows = first_rows(loop)
    entropy = torch.distributions.Categorical(logits=loop.policy.table).entropy()
    want = slope(loop, -0.05 * entropy[rows.sample.before][rows.mask].mean())
    assert_close(loop.go().gradients[0], want)


def test_answers_that_are_masked_leave_sum_and_count(tmp_path):
    algorithm = replace(GRPO, truncation_handling=shaping.mask, weights=reduction.token_mean)
    loop = Loop(algorithm=algorithm, plan=ONCE, folder=tmp_path)
    rows = first_rows(loop)
    assert 0 < rows.truncated.sum() < len(rows.mask)
    advantages = GRPO.advantage(loop.rewards(rows.outputs, rows.prompts), rows)
    kept = rows.mask & ~rows.truncated[:, None]
    logp = loop.policy.logp_under(rows.sample, loop.policy.table)
    want = slope(loop, -(advantages * logp)[kept].mean())
    assert_close(loop.go().gradients[0], want)


class WrongAtAnyLength(AtOnce):
    """No output is right, and each has a penalty for its length."""

    def __call__(self, outputs, prompts) -> Scores:
        right = torch.zeros(len(outputs), dtype=torch.float64)
        paid = torch.tensor([0.1 * len(output) for output in outputs], dtype=torch.float64)
        parts = {"accuracy": right, "length": -paid}
        return Scores(total=right - paid, parts=parts, scored=torch.ones_like(right).bool())


@pytest.mark.parametrize(("metric", "some"), [(None, False), ("accuracy", False), ("length", True)])
def test_groups_are_filtered_by_what_is_right_and_not_by_what_it_costs(metric, some, tmp_path):
    chosen = partial(strategies.dynamic_sampling, max_rounds=1, metric=metric)
    loop = Loop(
        algorithm=replace(GRPO, sampling_strategy=chosen),
        folder=tmp_path,
        rewards=WrongAtAnyLength(),
        guards=Guards(no_signal=99),
    ).go()
    assert (loop.report["dynamic_sampling/acceptance"] > 0) == some


def test_the_learning_rate_follows_iterations_however_many_updates_they_have(tmp_path):
    loop = Loop(folder=tmp_path)  # four updates an iteration
    loop.schedule = lambda iteration, iterations: 1 - iteration / iterations
    rates = []
    for _ in range(3):
        loop.on_train_batch_start([], 0)
        rates.append(loop.go().report["optim/lr"])
    assert rates == pytest.approx([1, 2 / 3, 1 / 3])
    assert len(loop.gradients) == 12


WHITENED = replace(GRPO, normalize_advantages=True, weights=reduction.token_mean)


def first_gradient(folder):
    plan = replace(ONCE, prompts_per_step=5)
    loop = Loop(algorithm=WHITENED, plan=plan, folder=folder, rewards=EndsInTwo()).go()
    return loop.gradients[0].numpy()


@pytest.mark.system
def test_advantages_are_whitened_over_all_ranks(tmp_path):
    alone = first_gradient(tmp_path)
    for gradient in on_both(partial(first_gradient, tmp_path)):
        assert gradient == pytest.approx(alone, rel=1e-9, abs=1e-12)
