"""Training on velocity errors in the real loop: gradients, cuts, and state."""

import copy
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from error_policy import ErrorPolicy
from laws import invariance
from laws.bench import Bench, preset, run
from loop import Alone
from policies.flow.small_flow import Brightness, Stream, sample_rows, small
from torch.testing import assert_close

from experiments.reward_weighted import reward_weighted
from tandem import distributed
from tandem.algorithm import decoupled
from tandem.algorithm.decoupled import likelihoods
from tandem.contracts import declare
from tandem.dynamics.decays import EmaSchedule, constant
from tandem.dynamics.kernels import ode
from tandem.experience import Budget
from tandem.metrics import Sum, reduce_metrics
from tandem.settings.guards import Guards
from tandem.training.batches import BatchPlan
from tandem.types import DecoupledBatch, Summary, map_fields, take

PRESETS = ("nft", "awm", "dgpo", "crd")
SURVEYED = ("dgpo", "crd")
EACH = pytest.mark.parametrize("name", PRESETS)


def few(name):
    """A preset for groups of four, at three noise levels."""
    algorithm = preset(name)
    return replace(
        algorithm, group_size=4, timestep_sampling=replace(algorithm.timestep_sampling, count=3)
    )  # fmt: skip


# Cuts, with an exact policy.


@EACH
def test_any_cut_gives_the_same_gradients_and_metrics(name):
    assert isinstance(run(few(name)).policy, ErrorPolicy)
    invariance.cut(few(name))


def weighed_by_level(batch):
    """The levels of a picture are as many for all: their mean is none of the rows beside it."""
    weight = 1 / (batch.sigma + 0.1)
    weight = weight / weight.mean(1, keepdim=True)
    return weight * batch.advantages * batch.error.square().mean(-1)


def test_a_loss_may_take_the_mean_over_the_levels_of_a_picture():
    loss = declare(on_errors=True)(weighed_by_level)
    invariance.cut(replace(few("nft"), loss=loss))


@pytest.mark.parametrize("name", SURVEYED)
def test_a_survey_finds_the_same_in_any_cut(name):
    invariance.find_alike(few(name))


@EACH
def test_neither_the_order_of_rows_nor_single_precision_matters(name):
    invariance.permutation(few(name))
    invariance.float32(few(name))


@pytest.mark.parametrize("name", SURVEYED)
def test_a_survey_is_the_forward_pass_of_an_update_that_is_not_cut(name):
    whole = run(few(name))
    rows = whole.plan.epochs * len(whole.rollout.mask)
    assert len(whole.policy.rows_seen) == whole.plan.updates
    assert sum(whole.policy.rows_seen) == rows
    cut = run(few(name), budget=Budget(rows=5))
    assert sum(cut.policy.rows_seen) == 2 * rows


@pytest.mark.parametrize("name", SURVEYED)
def test_what_a_survey_gathers_of_all_rows_is_small(name, monkeypatch):
    """Numbers per level, not errors, which are as large as images."""
    gathered, over_all = [], distributed.with_all_rows

    def spied(function, *records):
        gathered.extend(records)
        return over_all(function, *records)

    monkeypatch.setattr(distributed, "with_all_rows", spied)
    bench = run(few(name), budget=Budget(rows=5))
    seen = [record for record in gathered if isinstance(record, Summary | DecoupledBatch)]
    assert len(seen) == bench.plan.updates
    map_fields(seen[0], lambda x: assert_close(x.ndim, min(x.ndim, 2)))


@pytest.mark.parametrize("name", SURVEYED)
def test_no_graph_waits_for_a_rank_that_must_cut(name, monkeypatch):
    assert Bench(few(name)).first_rows().record.error.requires_grad
    monkeypatch.setattr(distributed, "all_max", lambda parts: parts + 1)
    assert Bench(few(name)).first_rows().record is None


def test_errors_are_read_as_log_probabilities_once_for_all_terms(monkeypatch):
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return likelihoods(*arguments)

    monkeypatch.setattr(decoupled, "likelihoods", counted)
    bench = run(few("awm"))
    assert len(calls) == 2 * len(bench.policy.rows_seen), "for the loss, and for what is logged"


def measure_first_rows(algorithm):
    """The metrics of the first update, before it."""
    bench = Bench(algorithm)
    return reduce_metrics(bench.objective(bench.policy, bench.first_rows()).metrics)


def test_an_own_old_policy_is_asked_for_pictures_too():
    @declare(reads={"old_logp"}, old_policy="recompute")
    def unlikelier(batch):
        return batch.old_logp - 0.1

    ratio = "actor/ratio_mean"
    assert measure_first_rows(few("awm"))[ratio] == pytest.approx(1)
    own = replace(few("awm"), old_logprobs=unlikelier)
    assert measure_first_rows(own)[ratio] == pytest.approx(math.exp(0.1))


def test_a_correction_of_pictures_is_measured_with_metrics_of_its_own():
    def halves(batch):
        return {"rollout_corr/steps": Sum(batch.mask.sum(), batch.mask.sum())}

    @declare(metrics=halves)
    def halved(batch):
        return 0.5 * batch.mask

    for name in ("nft", "awm"):
        seen = measure_first_rows(replace(few(name), importance_sampling=halved))
        assert (seen["rollout_corr/weight_mean"], seen["rollout_corr/steps"]) == (0.5, 1)


@pytest.mark.parametrize("name", ["nft", "awm"])
def test_rows_that_are_judged_by_themselves_are_seen_once(name):
    cut = run(few(name), budget=Budget(rows=10))
    assert sum(cut.policy.rows_seen) == cut.plan.updates * len(cut.rollout.mask)


def test_rows_without_advantage_are_measured_alike_whether_a_penalty_wants_them_or_not():
    algorithm = few("dgpo")
    without, hardly = (
        run(replace(algorithm, kl=replace(algorithm.kl, coef=coef))) for coef in (0.0, 1e-13)
    )
    assert without.report["reward/frac_zero_std"] > 0
    of_kl = {"loss/kl", "actor/kl_penalty", "actor/ref_kl"}
    for name in without.report.keys() - of_kl:
        assert without.report[name] == pytest.approx(hardly.report[name], abs=1e-9)


def test_a_penalty_is_measured_over_the_rows_that_its_gate_holds():
    algorithm = few("dgpo")
    bench = Bench(replace(algorithm, kl=replace(algorithm.kl, coef=0.3)))
    rows = bench.first_rows()
    first = torch.zeros_like(rows.rollout.group, dtype=torch.bool)
    first[0] = True
    even = dict.fromkeys(rows.weights, torch.ones_like(rows.advantages))
    held = replace(rows, record=None, weights=even | {"kl": even["kl"] * first[:, None]})
    outcome = bench.objective(bench.policy, held)
    paid = outcome.parts["kl"] / (0.3 * held.weights["kl"].sum())
    metrics = reduce_metrics(outcome.metrics)
    assert metrics["actor/kl_penalty"] == pytest.approx(paid.item(), rel=1e-5)
    assert metrics["actor/ref_kl"] > 0


# Missing rewards.


def unscored(scores, rollout):
    """The scores without that of the sixth row."""
    lost = torch.arange(len(scores.total)) == 5
    kept = scores.scored & ~lost
    return replace(scores, total=torch.where(kept, scores.total, 0), scored=kept), rollout


def without(scores, rollout):
    rows = torch.tensor([row for row in range(len(scores.total)) if row != 5])
    return take(scores, rows), take(rollout, rows)


@pytest.mark.parametrize("loss", [*PRESETS, "reward_weighted"])
def test_a_picture_without_a_score_is_as_if_it_were_not_there(loss):
    """It does not count as average: no pull to an older policy, no shift of a centre."""
    algorithm = few("nft" if loss == "reward_weighted" else loss)
    if loss == "reward_weighted":
        algorithm = replace(algorithm, loss=reward_weighted)
    lost = run(algorithm, change=unscored)
    invariance.agree(lost, run(algorithm, change=without))
    difference = [a - b for a, b in zip(lost.gradients, run(algorithm).gradients, strict=True)]
    assert any(gradient.abs().max() > 1e-6 for gradient in difference)


# A network, by hand.

PLAN = BatchPlan(
    seed=0,
    iterations=3,
    prompts_per_step=2,
    group_size=4,
    num_minibatches=1,
    epochs=2,
    budget=Budget(),
    max_grad_norm=100.0,
)


ADAM = partial(torch.optim.Adam, lr=3e-3)


class Loop(Alone):
    """A small transformer, a copy of it before each update, and the rows of each update."""

    def __init__(self, algorithm, folder, *, optimizer=ADAM, **plan):
        policy = small(
            algorithm.needs,
            steps=4,
            sampling={"kernel": ode, "weights": algorithm.rollout_weights},
            timesteps=algorithm.timestep_sampling,
            objective=algorithm.objective,
            snapshots=algorithm.ema,
        )
        super().__init__(
            policy=policy,
            algorithm=algorithm,
            rewards=Brightness(),
            stream=Stream(),
            optimizer=optimizer,
            plan=replace(PLAN, **plan),
            guards=Guards(),
            folder=folder,
        )
        self.before, self.gradients, self.minibatches_seen = [], [], []

    def update(self, minibatch):
        gradients = {name: p.grad for name, p in self.policy.trainable().items()}
        self.gradients.append({name: g.clone() for name, g in gradients.items()})
        self.before.append({name: w.clone() for name, w in self.policy.weights().items()})
        self.minibatches_seen.append(minibatch)
        super().update(minibatch)


@EACH
def test_every_epoch_puts_other_noise_on_the_pictures(name, tmp_path):
    loop = Loop(few(name), tmp_path).go(1)
    first, second = (minibatch.rollout for minibatch in loop.minibatches_seen)
    kept = torch.isin(loop.rollout.group, first.group)
    assert torch.equal(first.sample.key, loop.rollout.sample.key[kept])
    assert not torch.isin(second.sample.key, first.sample.key).any()
    assert torch.equal(second.sample.x0, first.sample.x0)
    assert len(second.sample.key.unique()) == len(first.sample.key.unique())
    one, other = (loop.policy.errors(rows, frozenset())["error"] for rows in (first, second))
    assert (one - other).abs().amax(-1).min() > 1e-3


def test_what_was_found_before_the_first_epoch_holds_in_the_others():
    """Old log-probabilities belong to the points of the ratio."""
    policy = small(steps=4, sampling={"kernel": ode}, objective="any")
    rollout = policy.complete(sample_rows(policy), frozenset({"old_logp"}))
    again = policy.resample_noise(rollout, 1)
    assert_close(policy.evidence(again, frozenset()).logp.detach(), again.old_logp)


def error_of(weights, loop, rollout, *, gradient=False):
    """A policy with these weights, sigma [B, T], and its velocity errors [B, T, D]."""
    alone = copy.deepcopy(loop.policy)
    alone.load_weights(weights)
    said = alone.errors(rollout, frozenset())
    return alone, said["sigma"], said["error"] if gradient else said["error"].detach()


def ghuber(sigma, error):
    energy = error.square().mean(-1)
    return sigma * 4 * ((energy + 1e-10) ** 0.25 - 1e-10**0.25)


def test_advantage_weighted_matching_is_ppo_on_minus_the_weighted_error(tmp_path):
    """Both updates of the second iteration, whose old policy is neither live nor the reference."""
    algorithm = few("awm")
    loop = Loop(algorithm, tmp_path).go(2)
    fast = dict(loop.before[0])
    averages = []
    for number, weights in enumerate([*loop.before[1:], loop.policy.weights()]):
        keep = 0.3 * number / 1000
        fast = {name: keep * fast[name] + (1 - keep) * w for name, w in weights.items()}
        averages.append(fast)
    for update in (2, 3):
        rows = loop.minibatches_seen[update]
        alone, sigma, error = error_of(loop.before[update], loop, rows.rollout, gradient=True)
        old = error_of(loop.before[2], loop, rows.rollout)[2]
        ref = error_of(loop.before[0], loop, rows.rollout)[2]
        average = error_of(averages[update - 1], loop, rows.rollout)[2]
        ratio = (ghuber(sigma, old) - ghuber(sigma, error)).exp()
        assert (ratio != 1).any() == (update == 3)
        clipped = ratio.clamp(0, 2)
        policy = -torch.minimum(ratio * rows.advantages, clipped * rows.advantages).mean()
        penalty = 1e-3 * (error - ref).square().mean() + (error - average).square().mean()
        trainable = alone.trainable()
        wanted = torch.autograd.grad(policy + penalty, list(trainable.values()))
        longest = max(float(gradient.abs().max()) for gradient in wanted)
        for name, gradient in zip(trainable, wanted, strict=True):
            assert_close(loop.gradients[update][name], gradient, atol=1e-4 * longest, rtol=1e-3)
    assert (rows.advantages != 0).any()


def test_a_lagging_old_policy_is_not_taken_for_a_sampler_that_disagrees(tmp_path):
    """Its ratio is not 1 before the first update of an iteration."""
    algorithm = few("awm")
    lagging = EmaSchedule(decay=partial(constant, decay=0.9), every="iteration")
    snapshots = {**algorithm.ema, "old": lagging}
    loop = Loop(replace(algorithm, ema=snapshots, rollout_weights="old"), tmp_path).go(2)
    assert loop.report["actor/log_ratio_max"] > loop.guards.first_update_ratio


@EACH
def test_a_network_is_cut_as_well(name, tmp_path):
    """At the second update older policies differ from the live one and do not affect its graph.

    Plain SGD: Adam would amplify the rounding of gradients near 0. Its rate is high because errors
    of two policies must differ by far more than the last bits, which depend on the number of rows
    of a matrix product.
    """
    descent = partial(torch.optim.SGD, lr=1.0)
    loops = [
        Loop(few(name), tmp_path, optimizer=descent, budget=Budget(rows=rows)) for rows in (None, 3)
    ]
    whole, cut = (loop.go(1) for loop in loops)
    for want, got in zip(whole.gradients, cut.gradients, strict=True):
        longest = max(float(gradient.abs().max()) for gradient in want.values())
        assert_close(got, want, atol=1e-5 * longest, rtol=1e-3)
    assert_close(cut.report, whole.report, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", ["nft", "crd"])
def test_a_stopped_run_goes_on_to_the_same_bits(name, tmp_path):
    """Older policies, their counters, and which of them equal the live weights."""
    algorithm = few(name)
    straight = Loop(algorithm, tmp_path, num_minibatches=2, epochs=1)
    stopped = Loop(algorithm, tmp_path, num_minibatches=2, epochs=1)
    stopped.go(1)
    file = tmp_path / "stopped.pt"
    parts = {"state": stopped.state(), "weights": stopped.policy.weights()}
    torch.save(parts | {"optimizer": stopped.only.state_dict()}, file)
    resumed = Loop(algorithm, tmp_path, num_minibatches=2, epochs=1)
    kept = torch.load(file)
    resumed.policy.load_weights(kept["weights"])
    resumed.load_state(kept["state"])
    resumed.only.load_state_dict(kept["optimizer"])
    straight.go(3), resumed.go(2)
    assert straight.reports[1:] == resumed.reports
    want, got = straight.state(), resumed.state()
    names = {"nft": {"old"}, "crd": {"old", "sampling"}}[name]
    assert {key.split("/")[0] for key in want if "/" in key} == {f"policy.{n}" for n in names}
    assert want.keys() == got.keys()
    assert all(torch.equal(value, got[key]) for key, value in want.items())
    for key, weight in straight.policy.weights().items():
        assert torch.equal(weight, resumed.policy.weights()[key])
    assert not torch.equal(want["policy.update"], stopped.state()["policy.update"])
