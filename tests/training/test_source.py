"""Concurrent sampling and scoring: the same samples, the same scores, and less waiting."""

import threading
import time
from functools import partial

import pytest
import torch
from table_policy import TablePolicy
from torch.testing import assert_close

from tandem.dynamics.kernels import flow_sde
from tandem.experience import Budget
from tandem.policies.flow.families.tiny_flow import TinyFlow
from tandem.policies.flow.policy import FlowPolicy
from tandem.policies.flow.records import FlowSampling
from tandem.policies.language.policy import LanguagePolicy
from tandem.policies.language.records import Sampling
from tandem.policies.language.tiny_lm import tiny_lm
from tandem.policies.request import Request
from tandem.rewards import Reward, Rewards, batched, groupwise, waits
from tandem.training.batches import BatchPlan
from tandem.training.collect import Clock, RolloutSource
from tandem.types import Prompt, map_fields

PROMPTS = {slot: Prompt(id=slot, source="s", text="?") for slot in range(4)}
LIMIT = 10.0  # seconds; without it a failing test would hang


def source_of(policy, rewards, *, group_size=2):
    plan = BatchPlan(
        seed=0, iterations=1, prompts_per_step=4, group_size=group_size, num_minibatches=1,
        epochs=1, budget=Budget(), max_grad_norm=1.0,
    )  # fmt: skip
    return RolloutSource(policy=policy, rewards=rewards, stream=None, plan=plan, clock=Clock())


class Watched(TablePolicy):
    """A policy that samples its second part only after the first was scored."""

    def __init__(self, judged) -> None:
        super().__init__()
        self.sampling = Sampling(max_new_tokens=5, max_rows=4)
        self.judged, self.parts = judged, []

    def sample(self, prompts, group_size, **options):
        if self.parts:
            assert self.judged.wait(LIMIT)
        self.parts.append([prompt.id for prompt in prompts])
        return super().sample(prompts, group_size, **options)


def test_what_is_sampled_is_judged_while_more_is_sampled():
    judged = threading.Event()

    @waits
    @groupwise
    def longest(outputs, prompt):
        judged.set()
        return [float(len(output)) for output in outputs]

    policy = Watched(judged)
    rollout, scores = source_of(policy, Rewards({"longest": Reward(longest)})).sample(PROMPTS)
    assert policy.parts == [[0, 1], [2, 3]]  # whole groups of 2, no more than 4 rows
    assert rollout.group.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert scores.total.tolist() == [len(output) for output in rollout.outputs]


def test_of_the_time_that_a_reward_takes_the_clock_counts_what_is_waited_for():
    class Slow(TablePolicy):
        sampling = None

        def sample(self, prompts, group_size, **options):
            time.sleep(0.2)
            return super().sample(prompts, group_size, **options)

    durations: list[float] = []

    @waits
    @batched
    def slow(outputs, prompts):
        start = time.perf_counter()
        time.sleep(0.15)
        durations.append(time.perf_counter() - start)
        return [1.0] * len(outputs)

    policy = Slow()
    policy.sampling = Sampling(max_new_tokens=5, max_rows=2)
    source = source_of(policy, Rewards({"slow": Reward(slow)}))
    source.sample(PROMPTS)
    spent = source.clock.seconds
    assert spent["sample"] >= 0.8
    assert len(durations) == 4
    assert spent["reward"] < sum(durations)  # all but the last part's overlapped with sampling


@pytest.fixture(scope="module")
def language():
    build = partial(tiny_lm, seed=0, hidden_size=32, num_layers=2, head_dim=8)
    policy = LanguagePolicy(build=build)
    policy.load(Request(sampling=Sampling(max_new_tokens=6, max_rows=4)))
    return policy


TEXTS = ("red circle", "green square", "blue triangle", "yellow circle")
PICTURES = {i: Prompt(id=i, source="shapes", text=text) for i, text in enumerate(TEXTS)}


def flow(**sampling):
    own = FlowSampling(kernel=partial(flow_sde, noise_level=0.7), steps=2, **sampling)
    policy = FlowPolicy(adapter=TinyFlow(seed=0, num_layers=1))
    policy.load(Request(sampling=own))
    return policy


def code(output, prompt):
    """A score of a text or an image."""
    known = output.sum().item() if isinstance(output, torch.Tensor) else sum(map(ord, output))
    return float(known + prompt.id / 8)


@waits
def awaited_code(output, prompt):
    return code(output, prompt)


def rollouts(policy, prompts, group_size):
    """From a source that waits for its reward, and from one that does not."""
    for function in (awaited_code, code):
        rewards = Rewards({"code": Reward(function)})
        assert rewards.waits == (function is not code)
        yield source_of(policy, rewards, group_size=group_size).sample(prompts)


def same(one, other):
    """Equal bits in every tensor and tuple."""

    def compare(a, b):
        if isinstance(a, tuple):
            for pair in zip(a, b, strict=True):
                compare(*pair)
        elif isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype and torch.equal(a, b)
        else:
            assert a == b
        return a

    map_fields(one, compare, other)


@pytest.mark.parametrize("group_size", [1, 2, 3, 4])
def test_the_samples_and_scores_of_a_language_model_are_the_same_bits(language, group_size):
    texts = ("cab>", "dbca>", "hgfedcba>", "a>")
    prompts = {i: Prompt(id=i, source="s", text=text) for i, text in enumerate(texts)}
    (rollout, scores), (serial, wanted) = rollouts(language, prompts, group_size)
    same(rollout, serial)
    same(scores, wanted)


def test_a_group_larger_than_what_the_sampler_holds_stays_whole(language):
    prompts = {3: Prompt(id=0, source="s", text="cab>"), 7: Prompt(id=1, source="s", text="ba>")}
    (rollout, scores), (serial, wanted) = rollouts(language, prompts, 6)
    assert rollout.group.tolist() == [3] * 6 + [7] * 6
    assert rollout.outputs == serial.outputs
    assert_close(rollout.behaviour_logp, serial.behaviour_logp, atol=1e-6, rtol=0)
    same(scores, wanted)


def test_the_samples_and_scores_of_a_flow_are_the_same_bits_where_its_cuts_coincide():
    (rollout, scores), (serial, wanted) = rollouts(flow(max_rows=4), PICTURES, 2)
    same(rollout, serial)
    same(scores, wanted)


def test_and_the_same_numbers_where_they_do_not():
    (rollout, scores), (serial, wanted) = rollouts(flow(max_rows=5), PICTURES, 2)
    assert_close(rollout.sample.x0, serial.sample.x0, atol=1e-6, rtol=1e-5)
    assert_close(rollout.behaviour_logp, serial.behaviour_logp, atol=1e-6, rtol=1e-5)
    assert_close(scores.total, wanted.total, rtol=1e-3, atol=0)  # a pixel may round differently


def test_where_nothing_waits_all_is_sampled_at_once():
    policy = Watched(threading.Event())
    source_of(policy, Rewards({"code": Reward(code)})).sample(PROMPTS)
    assert policy.parts == [[0, 1, 2, 3]]
