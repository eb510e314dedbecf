"""The one training step over a flow: nothing in it depends on whether a step is a token."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from loop import Alone
from records import GRPO
from small_flow import KERNELS, Brightness, Stream, small

from tandem.config import compose
from tandem.config.plain import to_plain
from tandem.experience import Budget
from tandem.policies.base import REUSED
from tandem.policies.flow.policy import SAME
from tandem.settings.guards import Guards
from tandem.stop import Stop
from tandem.training.batches import BatchPlan
from tandem.training.strategies import dynamic_sampling, tree

PLAN = BatchPlan(
    seed=0,
    iterations=3,
    prompts_per_step=4,
    group_size=8,
    num_minibatches=2,
    epochs=1,
    budget=Budget(rows=8),
    max_grad_norm=1.0,
)


def guards_of(model):
    """The guards of a run of this model."""
    overrides = [f"model={model}", "algorithm=flow_grpo"]
    overrides += ["model.path=sd3"] * (model != "tiny_flow")
    return Guards(**to_plain(compose(overrides).guards))


class Loop(Alone):
    def __init__(self, policy, folder, algorithm=GRPO, guards=None):
        super().__init__(
            policy=policy,
            algorithm=algorithm,
            rewards=Brightness(),
            stream=Stream(),
            optimizer=partial(torch.optim.Adam, lr=1e-3),
            plan=PLAN,
            guards=Guards() if guards is None else guards,
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
    loop = Loop(small(GRPO.needs), tmp_path, replace(GRPO, sampling_strategy=collect))
    before = {name: weight.clone() for name, weight in loop.policy.weights().items()}
    loop.go(1)
    assert any(not torch.equal(w, before[name]) for name, w in loop.policy.weights().items())
    loop.load_state(loop.state())


def test_a_branch_parts_from_one_course_at_its_own_step(tmp_path):
    loop = Loop(small(GRPO.needs), tmp_path, replace(GRPO, sampling_strategy=tree))
    loop.go(1)
    path, group = loop.rollout.sample.trajectory.path, loop.rollout.group
    assert path.shape[:2] == (4 * 8 * 4, 2) and loop.rollout.mask.shape[1] == 1  # of 5 steps 4
    assert len(group.unique()) == 4 * 4
    for name in group.unique():
        before, after = path[group == name].unbind(1)
        assert torch.equal(before, before[:1].expand_as(before))
        assert len(after.flatten(1).unique(dim=0)) == 8
    levels = loop.rollout.sample.trajectory.sigma[:, 0]
    assert len(levels.unique()) == 4 and loop.samples_seen == len(group)


@pytest.mark.parametrize("model", ["tiny_flow", "sd3_5_medium"])
def test_rounding_that_is_believed_does_not_end_a_run(model, tmp_path):
    """One row per pass in sampling and eight in training differ by float32 rounding."""
    guards = guards_of(model)
    assert guards.first_update_ratio >= SAME
    policy = small(GRPO.needs, sampling={"kernel": KERNELS["dance_sde"], "max_rows": 1})
    Loop(policy, tmp_path, guards=guards).go(1)
    assert policy.sampler == REUSED


@pytest.mark.parametrize("model", ["tiny_flow", "sd3_5_medium"])
def test_a_step_that_is_trained_with_other_noise_is_found(model, tmp_path):
    policy = small(GRPO.needs)
    other = partial(KERNELS["flow_sde"], noise_level=0.72)
    policy.logprobs.sampling = replace(policy.sampling, kernel=other)
    with pytest.raises(Stop, match=r"disagree .*: a different rollout\.guidance_scale, dyn"):
        Loop(policy, tmp_path, guards=guards_of(model)).go(1)
