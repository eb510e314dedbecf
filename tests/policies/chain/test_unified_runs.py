"""Runs of a chain of one transformer: resumed, and estimated."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from chain_policy import grpo, riddles, unified
from loop import PLAN, Alone
from policies.chain.test_chain import with_kl
from policies.flow.small_flow import Brightness

from tandem.launch.memory_estimate import footprint
from tandem.losses.segments import Segment
from tandem.policies.base import DIFFERENT
from tandem.policies.memory.estimate import Workload
from tandem.record.optimizer_state import load_optimizer_state, optimizer_state
from tandem.settings.guards import Guards


class Riddles(torch.nn.Module):
    def draw(self, iteration, count, *, round=0):
        return riddles()[:count]

    def observe(self, sources, success):
        pass


def run(folder, seed=0):
    rates = {"text": Segment(lr=1e-3), "picture": Segment(lr=2e-3, clip_scale=1e-3)}
    algorithm = with_kl(grpo(**rates))
    policy = unified(algorithm, seed=seed)
    for own in policy.parts.values():
        own.sampler.fill_(DIFFERENT)
    return Alone(
        policy=policy, algorithm=algorithm, rewards=Brightness(), stream=Riddles(),
        optimizer=partial(torch.optim.AdamW, lr=3e-3), folder=folder, guards=Guards(),
        plan=replace(PLAN, prompts_per_step=2, group_size=3, epochs=1),
    )  # fmt: skip


def test_a_run_that_was_resumed_is_the_run_that_was_not_bit_for_bit(tmp_path):
    whole = run(tmp_path).go(2)
    rates = [group["lr"] for group in whole.only.param_groups]
    assert rates == [3e-3, 1e-3, 2e-3]  # shared weights have the rate of the optimiser
    cut, again = run(tmp_path).go(1), run(tmp_path)
    again.policy.load_weights(cut.policy.weights())
    again.load_state(cut.state())
    names = again.policy.trainable()
    load_optimizer_state(again.only, names, *optimizer_state(cut.only, cut.policy.trainable()))
    again.go(1)
    for name, weight in whole.policy.weights().items():
        assert torch.equal(weight, again.policy.weights()[name]), name
    assert whole.reports[1] == again.reports[0]
    assert not torch.equal(
        cut.policy.layers.embed_tokens.weight, again.policy.layers.embed_tokens.weight
    )


WORK = Workload(
    samples=8, per_update=8, max_tokens=None, rows=8, narrow=False, state=lambda dtype: 8
)


def size(tensors):
    return sum(x.nbytes for x in {*tensors})


@pytest.mark.parametrize("frozen", [(), ("text",)])
def test_an_estimate_counts_what_both_have_once(frozen):
    algorithm = with_kl(grpo(**{name: Segment(weight=0.0) for name in frozen}))
    policy = unified(algorithm)
    kept = [policy.picture.model.frozen.network]
    kept += [] if policy.text.reference is None else [policy.text.reference.model]
    found = {}
    for part in footprint(policy, policy.request, WORK):
        name = part.name.partition(" ")[2]
        found[name] = found.get(name, 0) + part.size
    assert found["weights"] == pytest.approx(size(policy.parameters()), abs=1024)  # and buffers
    assert found["gradients"] == size(policy.trainable().values())
    held = size(p for network in kept for p in network.parameters())
    assert found["reference"] + found.get("layers", 0) == pytest.approx(held, abs=1024)
    assert found["activations"] > 0
