"""Samples of older weights: their source, their known quantities, and who may train on them."""

import shlex
from dataclasses import replace
from functools import partial

import pytest
import torch
from loop import EndsInTwo, Loop, Stream
from records import GRPO
from small_language import questions, small
from table_policy import TablePolicy
from torch import nn

from tandem import rng
from tandem.config import ConfigError, check, compose
from tandem.dynamics.decays import EmaSchedule, constant
from tandem.policies.flow.snapshots import Snapshots
from tandem.policies.language.policy import Sampling
from tandem.settings.guards import Guards
from tandem.stop import Stop
from tandem.training import strategies

DYNAMIC = replace(GRPO, sampling_strategy=partial(strategies.dynamic_sampling, max_rounds=3))


def lagging(folder, staleness, **options):
    """A loop that records the weights at the start of each iteration."""
    loop = Loop(folder=folder, **options)
    loop.policy.lagged.staleness = staleness
    loop.started = []
    begin = loop.training_step

    def step(*batch):
        loop.started.append(loop.policy.table.detach().clone())
        begin(*batch)

    loop.training_step = step
    return loop


def sample_with(table, prompts, iteration):
    """The samples of those weights, from a separate policy."""
    policy = TablePolicy()
    policy.table.data.copy_(table)
    key = rng.key(0, "rollout", iteration)
    return policy.sample(prompts, 4, key=key, slots=range(len(prompts)))


@pytest.mark.parametrize("staleness", [1, 2, 4])
def test_samples_are_those_of_the_weights_of_so_many_iterations_before(tmp_path, staleness):
    loop = lagging(tmp_path, staleness)
    for iteration in range(6):
        prompts = Stream().draw(iteration, 6)
        loop.go()
        before = loop.started[max(iteration - staleness, 0)]
        expected = sample_with(before, prompts, iteration)
        assert loop.rollout.outputs == expected.outputs
        assert torch.equal(loop.rollout.behaviour_logp, expected.behaviour_logp)
        gap = min(iteration, staleness)
        assert loop.rollout.version_gap[loop.rollout.mask].unique().tolist() == [gap]
        assert loop.report[f"staleness/share_{gap}"] == 1.0
        assert loop.report["staleness/gap_max"] == gap


def test_without_staleness_nothing_is_copied_and_nothing_has_an_age(tmp_path):
    loop = lagging(tmp_path, 0).go(2)
    assert loop.policy.lagged.versions == {}
    assert loop.rollout.version_gap is None
    assert not any("stale" in name or "fresh" in name for name in loop.report)


def test_no_more_copies_are_kept_than_are_needed(tmp_path):
    loop = lagging(tmp_path, 2)
    for iteration in range(5):
        loop.go()
        assert sorted(loop.policy.lagged.versions) == list(
            range(max(iteration - 2, 0), iteration + 1)
        )


def test_refills_are_of_the_newest_weights(tmp_path):
    loop = lagging(tmp_path, 2, algorithm=DYNAMIC, rewards=EndsInTwo()).go(4)
    rounds = [rollout.version_gap[rollout.mask].unique() for rollout, _ in loop.source.taken]
    assert len(rounds) > 1
    assert [ages.tolist() for ages in rounds] == [[2], *[[0]] * (len(rounds) - 1)]


def test_a_run_that_goes_on_has_the_older_weights(tmp_path):
    whole, first, second = (lagging(tmp_path, 2) for _ in range(3))
    whole.go(6)
    first.go(3)
    second.policy.load_weights(first.policy.weights())
    second.policy.lagged.load_state(first.policy.lagged.state())
    second.iteration = first.iteration
    second.go(3)
    assert second.rollout.outputs == whole.rollout.outputs
    assert torch.equal(second.policy.table, whole.policy.table)


# The two traps.


def test_a_trusted_sampler_is_not_the_old_policy_of_older_rows():
    policy = small(frozenset({"old_logp"}), sampling=Sampling(max_new_tokens=4, staleness=1))

    def sample(iteration):
        policy.iteration = iteration
        with policy.lagging() as gap:
            rows = policy.sample(questions(), 2, key=iteration, slots=range(8))
        return replace(rows, version_gap=gap * rows.mask.long())

    needs = frozenset({"old_logp"})
    fresh = policy.complete(sample(0), needs)
    assert fresh.old_logp is fresh.behaviour_logp
    with torch.no_grad():
        for weight in policy.trainable().values():
            weight.mul_(1.1)
    stale = policy.complete(sample(1), needs)
    live = policy.logp(stale)
    assert torch.allclose(stale.old_logp[stale.mask], live[stale.mask])
    assert (stale.old_logp - stale.behaviour_logp)[stale.mask].abs().max() > 1e-3


def test_a_sampler_that_was_trusted_is_not_in_a_lower_precision():
    policy, needs = small(frozenset({"old_logp"})), frozenset({"old_logp"})
    rows = policy.sample(questions(), 2, key=0, slots=range(8))
    assert policy.complete(rows, needs).old_logp is rows.behaviour_logp
    policy.exact = False  # as after resume=RUN trainer.precision=bf16-mixed
    assert policy.complete(rows, needs).old_logp is not rows.behaviour_logp


class Liar(TablePolicy):
    """From the second iteration on its sampler reports values of another temperature."""

    def rollout(self, *rows):
        said = super().rollout(*rows)
        logp = said.behaviour_logp * (1 + 0.3 * (self.iteration > 0))
        return replace(said, behaviour_logp=logp)


@pytest.mark.parametrize("staleness", [1, 2])
def test_a_sampler_that_disagrees_is_not_taken_for_an_old_one(tmp_path, staleness):
    loop = lagging(tmp_path, staleness)
    loop.policy = Liar()
    loop.policy.lagged.staleness = staleness
    loop.source.policy = loop.policy
    loop.only = loop.configure_optimizers()
    loop.go()
    with pytest.raises(Stop, match=r"sampler and trainer disagree by 0\.[1-9]"):
        loop.go()


def test_older_rows_of_an_honest_sampler_pass_the_guard_however_far_the_policy_moved(tmp_path):
    strict = Guards(max_mismatch=1e-6, first_update_ratio=1e-6)
    loop = lagging(tmp_path, 2, guards=strict).go(4)
    assert loop.report["rollout_corr/abs_logp_diff"] > 0.01


# The old policy in the ratio.


def test_a_snapshot_with_a_delay_is_read_as_it_was():
    weight = nn.Parameter(torch.zeros(1))
    copied = EmaSchedule(decay=partial(constant, decay=0.0), every="iteration")
    snapshots = Snapshots({"w": weight}, {"old": copied}, {"old": 2})
    for iteration in range(6):
        with snapshots.use("old"):
            assert weight.item() == max(iteration - 2, 0)
        assert weight.item() == iteration
        weight.data.fill_(iteration + 1)
        snapshots.follow("update")
        snapshots.follow("iteration")
    again = Snapshots({"w": weight}, {"old": copied}, {"old": 2})
    again.load_state(snapshots.state())
    assert [kept["w"].item() for kept in again.before["old"]] == [4, 5, 6]


REFUSED = {
    "algorithm/importance_sampling=none": (
        "rollout.staleness=1: nothing corrects for samples of older weights; set "
        "algorithm/importance_sampling=token_tis or staleness_decay"
    ),
    "algorithm=dpo_online": (
        "rollout.staleness=1: algorithm=dpo_online has no ratio to the weights that sampled its "
        "pairs; set rollout.staleness=0"
    ),
    "algorithm=sft": (
        "rollout.staleness=1: algorithm=sft samples nothing; set rollout.staleness=0"
    ),
    "model=tiny_masked algorithm=espo": (
        "rollout.staleness=1: algorithm/likelihood=elbo draws states of its own, for which "
        "there are no log-probabilities of the sampler; set rollout.staleness=0"
    ),
    "rollout.order=ready": (
        "rollout.order=ready takes rows as they finish, and a sampler that shares the trained "
        "weights returns them in order; set rollout.order=exact, or rollout=vllm_server"
    ),
    "rollout=vllm_server rollout.engine.url=http://127.0.0.1:1 rollout.handover=in_flight": (
        "rollout.handover=in_flight changes weights while rows are sampled, and "
        "rollout.order=exact needs one version per row; set rollout.order=ready, or "
        "rollout.handover=null"
    ),
    "rollout=vllm_server rollout.engine.url=http://127.0.0.1:1 rollout.handover=pinned": (
        "rollout.handover=pinned keeps adapters of older versions, and the whole weights are "
        "trained; set rollout.handover=null, or train an adapter by model.lora"
    ),
    "rollout=sglang_server rollout.engine.url=http://127.0.0.1:1 rollout.order=ready": (
        "rollout.handover=in_flight, the default of rollout.order=ready: rollout=sglang_server "
        "does not support it; set rollout.handover=drain"
    ),
    "rollout=sglang_server rollout.engine.url=http://127.0.0.1:1 rollout.order=ready "
    "model.lora='{r: 2, alpha: 4}' rollout.handover=in_flight": (
        "rollout.handover=in_flight: rollout=sglang_server does not support it; set "
        "rollout.handover=drain or pinned"
    ),
    "plugins=[experiments.bring_your_own.rollout_engine] rollout=copying "
    "model.lora='{r: 2, alpha: 4}'": (
        "rollout.handover=pinned, the default of adapters: rollout=copying does not support it; "
        "set rollout.handover=drain"
    ),
    "model=tiny_flow algorithm=awm": (
        "rollout.staleness=1: algorithm=awm compares with algorithm.ema.old, which did not "
        "sample the pictures; set algorithm.rollout_weights=old, or rollout.staleness=0"
    ),
    "model=tiny_flow algorithm=dgpo": (
        "rollout.staleness=1: algorithm=dgpo does not correct for the weights that sampled; "
        "set rollout.staleness=0, or algorithm=nft or flow_grpo"
    ),
}


@pytest.mark.parametrize("overrides", REFUSED)
def test_what_knows_no_sampler_is_refused_with_the_flag_to_set(overrides):
    with pytest.raises(ConfigError) as refused:
        check(compose(["rollout.staleness=1", *shlex.split(overrides)]))
    assert REFUSED[overrides] in str(refused.value)


@pytest.mark.parametrize(
    "overrides",
    [
        "algorithm=dapo", "algorithm=ppo", "algorithm=gspo", "algorithm=remax",
        "rollout=sglang_server rollout.engine.url=http://127.0.0.1:1",
        "rollout=sglang_server rollout.engine.url=http://127.0.0.1:1 rollout.order=ready "
        "model.lora='{r: 2, alpha: 4}'",
        "rollout=vllm_server rollout.engine.url=http://127.0.0.1:1 rollout.order=ready",
        "plugins=[experiments.bring_your_own.rollout_engine] rollout=copying",
        "algorithm=dppo", "algorithm/importance_sampling=staleness_decay",
        "model=tiny_flow algorithm=flow_grpo", "model=tiny_flow algorithm=nft",
        "model=tiny_flow algorithm=awm algorithm.rollout_weights=old",
    ],
)  # fmt: skip
def test_what_corrects_for_older_samples_may_have_them(overrides):
    check(compose(["rollout.staleness=2", *shlex.split(overrides)]))


def test_a_plugin_declares_the_handovers_that_it_supports(monkeypatch):
    from experiments.bring_your_own.rollout_engine import Copying

    words = ["plugins=[experiments.bring_your_own.rollout_engine]", "rollout=copying"]
    ahead = [*words, "rollout.staleness=2", "rollout.order=ready"]
    with pytest.raises(ConfigError, match=r"rollout=copying does not .*rollout\.handover=drain$"):
        check(compose(ahead))
    monkeypatch.setattr(Copying, "handover_modes", frozenset({"in_flight"}))
    check(compose(ahead))
