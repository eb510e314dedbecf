"""The one training step over a flow: nothing in it knows that a step is not a token."""

from dataclasses import replace
from functools import partial

import torch
from loop import Alone
from records import GRPO
from small_flow import KERNELS, asked, small

from tandem.batches import Budget, Plan
from tandem.collect import dynamic_sampling
from tandem.guards import Guards
from tandem.types import Scores

PLAN = Plan(
    seed=0,
    iterations=3,
    prompts_per_step=4,
    group_size=8,
    num_minibatches=2,
    epochs=1,
    budget=Budget(rows=8),
    max_grad_norm=1.0,
)


class Brightness:
    """How bright a picture is, from 0 to 1."""

    def __call__(self, outputs, prompts):
        total = torch.stack(list(outputs)).double().mean((1, 2, 3)) / 255
        return Scores(total=total, parts={"bright": total}, scored=torch.ones(len(total)).bool())

    def pop_faults(self):
        return {}


class Stream(torch.nn.Module):
    def draw(self, iteration, count, *, round=0):
        return asked()[:count]

    def observe(self, sources, success):
        pass


class Loop(Alone):
    def __init__(self, policy, folder, algorithm=GRPO):
        super().__init__(
            policy=policy,
            algorithm=algorithm,
            rewards=Brightness(),
            stream=Stream(),
            optimizer=partial(torch.optim.Adam, lr=1e-3),
            plan=PLAN,
            guards=Guards(),
            folder=folder,
        )


def test_policy_gradients_train_a_flow_and_the_first_ratio_is_one(tmp_path):
    policy = small(GRPO.needs, sampling={"kernel": KERNELS["cps"]})
    reports = Loop(policy, tmp_path).go(4).reports
    assert reports[-1]["reward/mean"] > reports[0]["reward/mean"] + 0.02
    assert reports[0]["optim/updates"] == 2
    assert reports[0]["response/length_mean"] == 4


def test_dynamic_sampling_draws_cuts_and_joins_pictures(tmp_path):
    collect = partial(dynamic_sampling, max_rounds=2)
    loop = Loop(small(GRPO.needs), tmp_path, replace(GRPO, collect=collect))
    before = {name: weight.clone() for name, weight in loop.policy.weights().items()}
    loop.go(1)
    assert any(not torch.equal(w, before[name]) for name, w in loop.policy.weights().items())
    loop.load_state(loop.state())
