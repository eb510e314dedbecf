"""The parts of an algorithm besides advantage and loss: KL, critic, correction, state, drift."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from loop import PLAN, EndsInTwo, Loop
from records import GRPO, rollout, scores
from torch.testing import assert_close

from tandem.advantages import shaping
from tandem.advantages.baselines import MovingAverage, raw_reward
from tandem.advantages.compose import Combined, Share, Standardised
from tandem.advantages.group import leave_one_out, opo
from tandem.advantages.moves import group_in_group, turn_to_go
from tandem.advantages.temporal import gae_returns, generalised
from tandem.advantages.token_baseline import otb
from tandem.algorithm.critic import Critic
from tandem.algorithm.regularizers import EntropyBonus, KLInLoss, KLInReward
from tandem.config import build, check, compose
from tandem.contracts import declare
from tandem.contracts.stateful import StatefulComponent
from tandem.experience import Budget
from tandem.losses import importance, reduction
from tandem.losses.critic import value_loss
from tandem.losses.kl import k3_unbiased
from tandem.losses.policy import ppo, reinforce
from tandem.policies.masked.states import path
from tandem.stop import Stop
from tandem.training import collect
from tandem.training.lr_schedules import cosine
from tandem.types import take

ONCE = replace(PLAN, num_minibatches=1, epochs=1)
CRITIC = Critic(coef=0.5, loss=value_loss, returns=gae_returns, lr=0.5, warmup=0)
ACTOR_CRITIC = replace(
    GRPO,
    advantage=generalised,
    normalize_advantages=True,
    critic=CRITIC,
    kl=KLInReward(coef=0.1),
    weights=reduction.token_mean,
)


# The critic.


def test_the_values_come_to_explain_the_returns(tmp_path):
    loop = Loop(algorithm=ACTOR_CRITIC, folder=tmp_path).go()
    assert loop.report["critic/explained_variance"] < 0.05  # of values that are all 0
    loop.go(6)
    assert loop.report["critic/explained_variance"] > 0.1
    assert loop.report["loss/value"] > 0


def test_the_critic_has_its_own_learning_rate(tmp_path):
    loop = Loop(algorithm=ACTOR_CRITIC, folder=tmp_path)
    assert [group["lr"] for group in loop.only.param_groups] == [1.0, 0.5]


def test_while_the_critic_warms_up_the_policy_stays_as_it_is(tmp_path):
    late = replace(ACTOR_CRITIC, critic=replace(CRITIC, warmup=2))
    loop = Loop(algorithm=late, folder=tmp_path)
    before = loop.policy.table.detach().clone()
    loop.go(2)
    assert torch.equal(loop.policy.table, before)
    assert loop.policy.values.any()
    assert "loss/policy" not in loop.report
    loop.go(1)
    assert not torch.equal(loop.policy.table, before)


@pytest.mark.parametrize("budget", [Budget(rows=5), Budget(max_tokens=17)], ids=str)
def test_any_cut_gives_an_actor_critic_the_same_gradient(budget, tmp_path):
    whole = Loop(algorithm=ACTOR_CRITIC, folder=tmp_path).go(2)
    cut = Loop(algorithm=ACTOR_CRITIC, plan=replace(PLAN, budget=budget), folder=tmp_path).go(2)
    assert_close(cut.gradients, whole.gradients, rtol=1e-9, atol=1e-12)
    assert_close(cut.policy.values, whole.policy.values, rtol=1e-9, atol=1e-12)


# The KL.


def sample_rows():
    mask = torch.tensor([[True, True, False], [True, False, False]])
    old = torch.tensor([[-1.0, -2.0, 0.0], [-0.5, 0.0, 0.0]])
    ref = torch.tensor([[-1.5, -1.0, 0.0], [-0.5, 0.0, 0.0]])
    return rollout(mask, torch.tensor([0, 0]), old_kl_to_ref=old - ref)


def test_a_kl_in_the_reward_is_taken_from_every_step_and_from_the_sum():
    total = torch.tensor([1.0, 0.5])
    charged = KLInReward(coef=0.2).charge(scores(total), sample_rows(), in_time=True)
    assert_close(charged.per_step, torch.tensor([[-0.1, 1.2, 0.0], [0.5, 0.0, 0.0]]))
    assert_close(charged.total, charged.per_step.sum(1))


def test_a_sample_without_a_score_pays_nothing():
    known = scores(torch.tensor([1.0, 0.5]), torch.tensor([True, False]))
    charged = KLInReward(coef=0.2).charge(known, sample_rows(), in_time=True)
    assert charged.total.tolist() == pytest.approx([1.1, 0.0])
    assert not charged.per_step[1].any()


@declare(reads={"old_kl_to_ref"})
def near(scores, rollout):
    return rollout.old_kl_to_ref.sum(1) < 1


@declare(reads={"entropy"})
def unsure(batch):
    return batch.entropy


def weighed(batch, *, weight):
    return -batch.logp * weight(batch)


def test_what_parts_of_a_loss_and_the_gate_of_a_kl_read_is_requested():
    assert not {"old_kl_to_ref", "entropy"} & GRPO.needs
    gated = replace(GRPO, kl=KLInLoss(coef=0.1, loss=k3_unbiased, gate=near))
    assert "old_kl_to_ref" in gated.needs_before & gated.needs
    deep, bare = (partial(weighed, weight=partial(weighed, weight=x)) for x in (unsure, len))
    for key in ("loss", "importance_sampling"):
        without = replace(GRPO, **{key: bare}).needs
        assert replace(GRPO, **{key: deep}).needs == without | {"entropy"}


def test_a_kl_is_paid_in_one_place():
    in_loss = KLInLoss(coef=0.2, loss=k3_unbiased)
    assert in_loss.reads_before == frozenset()  # so the rewards are not charged
    assert in_loss.term_beside(reduction.token_mean).coef == 0.2
    assert KLInReward(coef=0.2).term_beside(reduction.token_mean) is None
    assert KLInReward(coef=0.0).reads_before == frozenset()
    assert KLInReward(coef=0.1).reads_before == {"old_kl_to_ref"}


def test_group_advantages_see_what_the_kl_took(tmp_path):
    """RLOO of the score minus the KL of the whole sample."""
    paying = replace(GRPO, advantage=leave_one_out, kl=KLInReward(coef=0.3))
    rows = sample_rows()
    known = scores(torch.tensor([1.0, 0.5]))
    got = paying.experience(known, rows).advantages[:, 0]
    k1 = rows.old_kl_to_ref.sum(1)
    first, second = known.total - 0.3 * k1
    assert_close(got, torch.stack([first - second, second - first]))


IN_TIME, IN_NO_ORDER = [0.5, 1.0], [0.5, 0.5]
IN_REWARD = ["algorithm/kl=in_reward", "algorithm.kl.coef=0.1", "~recipe"]


@pytest.mark.parametrize(
    ("line", "want"),
    [
        (["algorithm=remax", *IN_REWARD], IN_TIME),
        (["model=tiny_flow", "algorithm=reinforce", *IN_REWARD], IN_TIME),
        (["model=tiny_masked", "algorithm=remax"], IN_NO_ORDER),
        (
            ["model=tiny_masked", "algorithm=topr", "algorithm.advantage.baseline=0", *IN_REWARD],
            IN_NO_ORDER,
        ),
        (["model=tiny_chain", "algorithm=reinforce", *IN_REWARD], IN_NO_ORDER),
    ],
    ids=str,
)
def test_a_step_is_spared_the_kl_of_columns_to_its_left_only_if_they_came_before_it(line, want):
    """Score 1, KL [5, 0] and a coefficient of 0.1: the sample is worth 1 - 0.5.

    In time the second step did not cause the KL of the first one, so it is worth 1. A position of a
    masked text may be written after the one to its right, and the picture of a chain, which comes
    first, was painted after its text: there the second column caused the KL, and is worth 0.5 too.
    """
    cfg = compose(line)
    check(cfg)  # legal
    algorithm = build(cfg.algorithm)
    assert algorithm.kl.coef == 0.1
    kl = torch.tensor([[5.0, 0.0], [0.0, 0.0]])
    greedy = torch.tensor([False, True])  # for ReMax: a baseline of 0
    rows = rollout(torch.ones(2, 2).bool(), torch.tensor([0, 0]), old_kl_to_ref=kl, baseline=greedy)
    ready = algorithm.experience(scores(torch.tensor([1.0, 0.0])), rows)
    assert ready.advantages[0].tolist() == pytest.approx(want)
    assert ready.scores.total.tolist() == pytest.approx([0.5, 0.0])


@pytest.mark.parametrize("likelihood", [None, path], ids=["in_time", "masked"])
def test_a_kl_in_the_reward_has_its_gradient_whichever_column_is_written_first(likelihood):
    """That of E[R - 0.3 log(p / reference)] over all texts of two positions and two tokens."""
    numbers = torch.Generator().manual_seed(0)
    table, reference = torch.randn(2, 3, 2, generator=numbers, dtype=torch.float64)
    table.requires_grad_()
    tokens = torch.cartesian_prod(torch.arange(2), torch.arange(2))  # [4, 2], as they are written

    def logp(weights):  # [4, 2]: the first token by row 0, the second by the row of the first
        state = torch.stack([torch.zeros(4, dtype=torch.int64), 1 + tokens[:, 0]], 1)
        own = weights.log_softmax(-1)[state].gather(2, tokens[..., None])[..., 0]
        return own if likelihood is None else own.flip(1)  # masked: right to left

    live, other = logp(table), logp(reference)
    probability, total = live.sum(1).exp(), torch.randn(4, generator=numbers, dtype=torch.float64)
    truth = probability @ (total - 0.3 * (live - other).sum(1))
    kl = (live - other).detach()
    rows = rollout(torch.ones(4, 2).bool(), torch.zeros(4, dtype=torch.int64), old_kl_to_ref=kl)
    paying = replace(GRPO, advantage=raw_reward, kl=KLInReward(coef=0.3), likelihood=likelihood)
    advantages = paying.experience(scores(total), rows).advantages
    policy = probability.detach() @ (advantages * live).sum(1)
    want = torch.autograd.grad(truth, table, retain_graph=True)
    assert want[0].any()
    assert_close(torch.autograd.grad(policy, table), want, rtol=1e-12, atol=1e-12)


def test_the_comparison_reads_the_old_policy_even_with_one_update(tmp_path):
    paying = replace(GRPO, kl=KLInReward(coef=0.1))
    assert "old_kl_to_ref" in Loop(algorithm=paying, plan=ONCE, folder=tmp_path).needs
    assert "old_logp" not in Loop(plan=ONCE, folder=tmp_path).needs


def test_a_controller_moves_the_coefficient_towards_its_target(tmp_path):
    held = KLInLoss(coef=0.1, loss=k3_unbiased, kl_target=1e-4, horizon=100)
    loop = Loop(algorithm=replace(GRPO, kl=held), folder=tmp_path).go()
    assert loop.report["optim/kl_coef"] == 0.1  # of this iteration
    assert float(held.coefficient) == pytest.approx(0.1 * (1 + 0.2 * 24 / 100))


def test_a_target_needs_a_coefficient_to_move():
    with pytest.raises(ValueError, match=r"algorithm\.kl\.coef=0"):
        KLInReward(coef=0.0, kl_target=0.1)


@pytest.mark.parametrize("kind", [partial(KLInLoss, loss=k3_unbiased), KLInReward])
def test_a_schedule_moves_the_coefficient_with_the_iterations(kind, tmp_path):
    held = kind(coef=0.1, schedule=partial(cosine, iterations=2))
    loop = Loop(algorithm=replace(GRPO, kl=held), folder=tmp_path).go()
    assert loop.report["optim/kl_coef"] == 0.1
    loop.go()
    assert loop.report["optim/kl_coef"] == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("numbers", "advice"),
    [({"coef": 0.0}, "coef above 0"), ({"coef": 0.1, "kl_target": 0.1}, "kl_target=null")],
)
def test_a_schedule_needs_a_coefficient_and_no_controller_of_it(numbers, advice):
    with pytest.raises(ValueError, match=rf"kl/schedule=cosine .*; set algorithm\.kl\.{advice}$"):
        KLInReward(schedule=partial(cosine, iterations=2), **numbers)


# Truncated answers.

WITH_TRUNCATED = torch.tensor([[True, True, False, False]] + [[True] * 4] * 2)


def one_that_finished(**known):
    """A right answer that ended, and two wrong ones that the limit cut off, of two moves each."""
    mask = WITH_TRUNCATED
    turn = mask * torch.tensor([1, 1, 2, 2])
    rows = rollout(
        mask, torch.zeros(3, dtype=torch.int64), truncated=torch.tensor([False, True, True]),
        old_logp=-1.0 * mask, sum_pi_squared=0.5 * mask, turn=turn, state=turn, **known,
    )  # fmt: skip
    return scores(torch.tensor([1.0, 0.0, 0.0])), rows


COMPARED = {
    "leave_one_out": leave_one_out,
    "opo": opo,
    "otb": otb,
    "turn_to_go": partial(turn_to_go, scale=None),
    "group_in_group": partial(group_in_group, scale=None),
    "standardised": Standardised(of=opo),
}


@pytest.mark.parametrize("advantage", COMPARED.values(), ids=COMPARED)
@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_answers_that_are_not_trained_on_count_in_their_group(advantage, kl):
    rows = one_that_finished(old_kl_to_ref=torch.arange(12.0).view(3, 4) % 5)
    alike = replace(GRPO, advantage=advantage, kl=KLInReward(coef=kl))
    want = alike.experience(*rows).advantages
    masking = replace(alike, truncation_handling=shaping.mask)
    found = masking.experience(*rows)
    assert want[0].any()
    assert_close(found.advantages[0], want[0])
    assert not found.advantages[1:].any()
    assert not found.rollout.mask[1:].any()


def test_rows_that_a_handling_takes_are_compared_and_others_are_not():
    def taken(scores, rollout):
        kept = torch.tensor([2, 0])
        return shaping.mask(take(scores, kept), take(rollout, kept))

    algorithm = replace(GRPO, advantage=opo, truncation_handling=taken)
    found = algorithm.experience(*one_that_finished()).advantages
    assert_close(found[:, 0], torch.tensor([0, 2 / 3]))


def test_advantages_are_normalised_over_what_is_trained():
    masking = replace(
        GRPO, advantage=raw_reward, truncation_handling=shaping.mask, normalize_advantages=True
    )
    known, rows = one_that_finished()
    rows = replace(rows, truncated=torch.tensor([False, False, True]))
    found = masking.experience(known, rows).advantages[rows.mask & ~rows.truncated[:, None]]
    assert_close(found.mean(), torch.tensor(0.0))
    assert_close(found.std(), torch.tensor(1.0))


# Memory.


def remembering():
    return replace(
        GRPO,
        advantage=Combined({"mean": Share(MovingAverage(decay=0.9)), "own": Share(leave_one_out)}),
        kl=KLInLoss(coef=0.1, loss=k3_unbiased, kl_target=1e-3),
        entropy=EntropyBonus(coef=0.0, target=5.0),
    )


def test_what_an_algorithm_remembers_is_part_of_the_state(tmp_path):
    loop = Loop(algorithm=remembering(), folder=tmp_path).go(2)
    loop.policy.state = dict
    loop.policy.load_state = loop.stream.load_state_dict = lambda state: None
    state = loop.state()
    assert {name for name in state if name.startswith("algorithm.")} == {
        "algorithm.kl.value",
        "algorithm.entropy.value",
        "algorithm.entropy.entropy",
        "algorithm.advantage.shares.mean.of.average",
        "algorithm.advantage.shares.mean.of.iterations",
    }
    again = Loop(algorithm=remembering(), folder=tmp_path)
    again.policy.load_state = again.stream.load_state_dict = lambda state: None
    again.load_state(state)
    for name, memory in loop.algorithm.memory.items():
        assert_close(again.algorithm.memory[name].state_dict(), memory.state_dict())


def test_what_is_remembered_is_reported(tmp_path):
    loop = Loop(algorithm=remembering(), folder=tmp_path).go()
    baseline = loop.algorithm.memory["advantage.shares.mean.of"].baseline
    assert loop.report["optim/baseline"] == baseline != 0
    assert loop.report["optim/kl_coef"] == 0.1
    assert loop.report["optim/entropy_coef"] == 0


def test_two_parts_of_one_class_both_report(tmp_path):
    slow, shared = MovingAverage(decay=0.99), MovingAverage(decay=0.9)
    shares = {"a": Share(shared), "b": Share(slow), "c": Share(shared)}
    loop = Loop(algorithm=replace(GRPO, advantage=Combined(shares)), folder=tmp_path).go()
    assert loop.report["optim/baseline"] == shared.baseline
    assert loop.report["optim/baseline.advantage.shares.b.of"] == slow.baseline


def test_a_module_that_says_nothing_is_remembered_all_the_same(tmp_path):
    counting = Counting()
    loop = Loop(algorithm=replace(GRPO, advantage=counting), folder=tmp_path).go(2)
    assert loop.algorithm.memory == {"advantage": counting}
    assert counting.calls == 2


class Counting(torch.nn.Module):
    """A custom advantage with state and without metrics."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, scores, rollout):
        self.calls += 1
        return leave_one_out(scores, rollout)


class CountingInVain(StatefulComponent):
    """The same with the state in a plain attribute."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, scores, rollout):
        self.calls += 1
        return leave_one_out(scores, rollout)


class CountingInATable(CountingInVain):
    """The same in the middle of a tensor, which its repr leaves out."""

    def __init__(self):
        super().__init__()
        self.calls = torch.zeros(2001)

    def forward(self, scores, rollout):
        self.calls[1000] += 1
        return leave_one_out(scores, rollout)


@pytest.mark.parametrize("counting", [CountingInVain, CountingInATable])
def test_a_state_that_no_checkpoint_would_hold_is_refused(counting, tmp_path):
    loop = Loop(algorithm=replace(GRPO, advantage=counting()), folder=tmp_path)
    with pytest.raises(
        Stop, match=rf"^{counting.__name__}.calls at .*: self.register_buffer\('calls', "
    ):
        loop.go()


def test_an_entropy_below_its_target_is_paid_for_from_the_next_iteration_on(tmp_path):
    awake = replace(GRPO, entropy=EntropyBonus(coef=0.0, target=9.0, step=0.01))
    loop = Loop(algorithm=awake, folder=tmp_path)
    sample = loop.policy.sample
    loop.policy.sample = lambda *args, **kw: with_entropy(sample(*args, **kw))
    loop.go()
    assert loop.report["loss/entropy"] == 0
    loop.go()
    assert loop.report["loss/entropy"] < 0


def with_entropy(rows):
    return replace(rows, entropy=rows.mask.double())


# Drift and staleness.


def test_updates_end_once_the_policy_has_drifted_past_its_target(tmp_path):
    free = Loop(folder=tmp_path).go()
    held = Loop(algorithm=replace(GRPO, target_kl=1e-6), folder=tmp_path).go()
    assert free.report["optim/updates"] == 4
    assert held.report["optim/updates"] == 1  # the second moved too far
    assert len(held.gradients) == 1


def with_age(loop, gap: int):
    """A loop whose sampler marks rows as sampled by older weights."""
    sample = loop.policy.sample

    def older(*args, **kw):
        rows = sample(*args, **kw)
        return replace(rows, version_gap=torch.full_like(rows.mask, gap, dtype=torch.float32))

    loop.policy.sample = older
    return loop


BARE = replace(GRPO, importance_sampling=importance.none)


def test_stale_rows_without_a_correction_are_refused(tmp_path):
    with pytest.raises(Stop, match="algorithm/importance_sampling=token_tis or staleness_decay"):
        with_age(Loop(algorithm=BARE, folder=tmp_path), 1).go()
    with_age(Loop(algorithm=BARE, folder=tmp_path), 0).go()
    with_age(
        Loop(algorithm=replace(BARE, old_logprobs=importance.rollout), folder=tmp_path), 1
    ).go()


def test_a_decay_weighs_the_loss_of_stale_rows_and_nothing_else(tmp_path):
    decayed = partial(importance.staleness_decay, decay=0.5)
    own = replace(GRPO, importance_sampling=decayed, kl=KLInLoss(coef=0.1, loss=k3_unbiased))
    fresh = Loop(algorithm=own, plan=ONCE, folder=tmp_path).go()
    stale = with_age(Loop(algorithm=own, plan=ONCE, folder=tmp_path), 2).go()
    assert stale.report["rollout_corr/weight_mean"] == pytest.approx(0.25)
    assert stale.report["rollout_corr/version_gap"] == 2
    assert stale.report["loss/kl"] == pytest.approx(fresh.report["loss/kl"])
    bare = Loop(algorithm=replace(BARE, kl=KLInLoss(coef=0.1, loss=k3_unbiased)),
                plan=ONCE, folder=tmp_path).go()  # fmt: skip
    kl = Loop(algorithm=replace(own, advantage=nothing), plan=ONCE, folder=tmp_path).go()
    policy = bare.gradients[0] - kl.gradients[0]
    assert_close(stale.gradients[0], 0.25 * policy + kl.gradients[0])


@pytest.mark.parametrize(
    "old_logprobs", [importance.recompute, importance.rollout], ids=["recompute", "rollout"]
)
def test_the_mismatch_of_sampler_and_trainer_leaves_out_the_updates(old_logprobs, tmp_path):
    algorithm = replace(BARE, old_logprobs=old_logprobs)
    plan = replace(PLAN, num_minibatches=1, epochs=3)
    report = Loop(algorithm=algorithm, plan=plan, folder=tmp_path).go().report
    assert report["actor/log_ratio_max"] > 0.01
    assert report["rollout_corr/abs_logp_diff"] == pytest.approx(0, abs=1e-6)


def nothing(scores, rollout):
    return torch.zeros_like(rollout.mask, dtype=torch.float64)


def test_the_policy_as_it_is_stands_for_the_old_one_where_there_is_no_ratio(tmp_path):
    """Truncated importance sampling of REINFORCE: no forward pass before the updates."""
    off = replace(GRPO, loss=reinforce, old_logprobs=importance.current)
    loop = Loop(algorithm=off, folder=tmp_path)
    assert "old_logp" not in loop.needs
    assert loop.go().report["rollout_corr/weight_mean"] != 1


@declare(reads={"old_logp"})
def as_it_was(batch):
    """The old policy of a user, who knows nothing of what is run before an update."""
    return 1.0 * batch.old_logp


@pytest.mark.parametrize("plan", [ONCE, PLAN])
def test_an_old_policy_that_reads_the_trainer_s_is_given_it_whatever_the_updates(plan, tmp_path):
    own = replace(GRPO, old_logprobs=as_it_was)
    ours, theirs = (Loop(algorithm=a, plan=plan, folder=tmp_path).go() for a in (GRPO, own))
    assert_close(theirs.gradients, ours.gradients, rtol=0, atol=0)


# Losses that read more than their own rows.


def mean_advantage(batch, *, power):
    return torch.full_like(batch.advantages, batch.logp.detach().sum() ** power)


@declare(reads={"old_logp"}, zero_at_zero_advantage=True, batch_statistics=mean_advantage)
def scaled(batch, statistics, *, power=2):
    """A loss that depends on all rows of an update."""
    return ppo(batch) * statistics


@pytest.mark.parametrize("budget", [Budget(rows=5), Budget(rows=1), Budget(max_tokens=17)], ids=str)
def test_a_survey_sees_the_update_before_any_cut(budget, tmp_path):
    algorithm = replace(GRPO, loss=scaled)
    whole = Loop(algorithm=algorithm, folder=tmp_path, rewards=EndsInTwo()).go(2)
    cut = Loop(
        algorithm=algorithm,
        plan=replace(PLAN, budget=budget),
        folder=tmp_path,
        rewards=EndsInTwo(),
    ).go(2)
    assert max(cut.policy.rows_seen) < max(whole.policy.rows_seen)
    assert_close(cut.gradients, whole.gradients, rtol=1e-9, atol=1e-12)


def of_rows(batch):
    return batch.advantages[:, :1]


@declare(reads={"old_logp"}, zero_at_zero_advantage=True, batch_statistics=of_rows)
def scaled_by_rows(batch, statistics):
    return ppo(batch) * statistics


def test_a_survey_of_one_number_for_each_row_is_refused(tmp_path):
    # It would be filled up with zeros, and be right on the first step alone.
    loop = Loop(algorithm=replace(GRPO, loss=scaled_by_rows), folder=tmp_path)
    with pytest.raises(Stop, match=r"^of_rows at .* \[\d+, 1\]; return \[B, T\], here \["):
        loop.go()


@declare(zero_at_zero_advantage=True, whole_groups=True)
def between_rows(batch):
    """Asserts that every group is whole."""
    same = batch.group[:, None] == batch.group
    assert (same.sum(1) == 4).all() or len(batch.group) == 1
    total = same.to(batch.logp) @ batch.logp.sum(1, keepdim=True)
    return (total * batch.advantages).square()


@pytest.mark.parametrize("budget", [Budget(rows=5), Budget(rows=1), Budget(max_tokens=44)], ids=str)
def test_a_cut_keeps_groups_whole_where_rows_are_compared(budget, tmp_path):
    algorithm = replace(GRPO, loss=between_rows)
    whole = Loop(algorithm=algorithm, folder=tmp_path).go()
    cut = Loop(algorithm=algorithm, plan=replace(PLAN, budget=budget), folder=tmp_path).go()
    assert max(cut.policy.rows_seen) < max(whole.policy.rows_seen)
    assert_close(cut.gradients, whole.gradients, rtol=1e-9, atol=1e-12)


def test_rows_to_compare_with_are_neither_trained_nor_forwarded(tmp_path):
    def with_a_greedy_row(source, prompts):
        rows, known = collect.on_policy(source, prompts)
        last = torch.arange(len(rows.mask)) % 4 == 3
        return replace(rows, baseline=last), known

    loop = Loop(algorithm=replace(GRPO, sampling_strategy=with_a_greedy_row), folder=tmp_path)
    loop.go()
    assert max(loop.policy.rows_seen) == 9  # three groups of three


def pulled(batch):
    """Its value is 0 without an advantage, and its gradient is not."""
    return -batch.advantages * batch.logp + (batch.logp - batch.logp.detach())


def raised(batch):
    return -batch.advantages * batch.logp + 1.0


def pulled_back(batch):
    """Value and gradient are 0 as long as the policy is the old one, as in the first update."""
    return -batch.advantages * batch.logp + (batch.logp - batch.old_logp).square()


@pytest.mark.parametrize(
    ("loss", "what"),
    [(pulled, "gradient is 1"), (raised, "value is 1"), (pulled_back, r"value is 0\.\d+")],
)
def test_a_loss_that_declares_in_vain_to_be_zero_without_an_advantage_is_refused(
    loss, what, tmp_path
):
    honest = declare(reads={"old_logp"})(partial(loss))
    Loop(algorithm=replace(GRPO, loss=honest), folder=tmp_path).go()
    flags = {"reads": {"old_logp"}, "zero_at_zero_advantage": True}
    declared = declare(**flags)(lambda batch: loss(batch))
    with pytest.raises(Stop, match=rf"declares zero_at_zero_advantage=True, but its {what} where"):
        Loop(algorithm=replace(GRPO, loss=declared), folder=tmp_path).go()
