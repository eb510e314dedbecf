"""The training step on a policy without a network: cuts, ranks and skipped rows do not matter."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import count

import pytest
import torch
from loop import PLAN, WITH_PENALTIES, EndsInTwo, Loop, ShareOfThrees
from records import GRPO
from safetensors.torch import load_file
from torch.testing import assert_close
from two_ranks import on_two_ranks

from tandem import rng
from tandem.advantages.baselines import raw_reward
from tandem.advantages.group import batch_relative, given
from tandem.advantages.teacher import from_teacher
from tandem.advantages.temporal import reward_to_go
from tandem.algorithm.algorithm import Algorithm
from tandem.algorithm.regularizers import EntropyBonus
from tandem.contracts import declare
from tandem.contracts.parts import place_of
from tandem.contracts.stateful import StatefulComponent
from tandem.experience import Budget, Experience
from tandem.losses import importance, reduction
from tandem.losses.policy import nll, ppo, reinforce
from tandem.policies.weights import clip_gradients
from tandem.settings.failures import save_failure
from tandem.settings.guards import Guards
from tandem.stop import Stop
from tandem.training import strategies
from tandem.training.collect import on_policy
from tandem.types import Scores


@pytest.mark.parametrize("algorithm", [GRPO, WITH_PENALTIES], ids=["grpo", "with penalties"])
@pytest.mark.parametrize("budget", [Budget(rows=5), Budget(rows=1), Budget(max_tokens=17)], ids=str)
def test_any_cut_into_micro_batches_gives_the_same_gradient(algorithm, budget, tmp_path):
    whole = Loop(algorithm=algorithm, folder=tmp_path).go(2)
    cut = Loop(algorithm=algorithm, plan=replace(PLAN, budget=budget), folder=tmp_path).go(2)
    assert max(cut.policy.rows_seen) < max(whole.policy.rows_seen)
    assert len(whole.gradients) == 8
    assert_close(cut.gradients, whole.gradients, rtol=1e-9, atol=1e-12)
    assert_close(cut.report, whole.report, rtol=1e-9, atol=1e-12)


def learnt(algorithm: Algorithm, folder):
    # Five prompts: one rank has three groups and the other two, so their cuts differ in number.
    plan = replace(PLAN, prompts_per_step=5, budget=Budget(rows=3))
    loop = Loop(algorithm=algorithm, plan=plan, folder=folder, rewards=EndsInTwo()).go(2)
    return [gradient.numpy() for gradient in loop.gradients], loop.report


DYNAMIC = replace(GRPO, sampling_strategy=partial(strategies.dynamic_sampling, max_rounds=3))
UNEQUAL = {"grpo": GRPO, "with penalties": WITH_PENALTIES, "dynamic sampling": DYNAMIC}


@pytest.fixture(scope="module")
def of_two_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return on_two_ranks({name: partial(learnt, own, folder) for name, own in UNEQUAL.items()})


@pytest.mark.system
@pytest.mark.parametrize("name", UNEQUAL)
def test_two_ranks_with_unequal_numbers_of_rows_give_the_gradient_of_one(
    name, tmp_path, of_two_ranks
):
    plan = replace(PLAN, prompts_per_step=5)
    alone = Loop(algorithm=UNEQUAL[name], plan=plan, folder=tmp_path, rewards=EndsInTwo()).go(2)
    for rank in range(2):
        gradients, report = of_two_ranks[rank, name]
        for got, want in zip(gradients, alone.gradients, strict=True):
            assert_close(torch.tensor(got), want, rtol=1e-9, atol=1e-12)
        assert_close(report, alone.report, rtol=1e-9, atol=1e-12)


def test_rows_without_advantage_are_skipped_only_if_no_term_wants_them(tmp_path):
    quiet = {"rewards": ShareOfThrees(value=1.0), "guards": Guards(no_signal=99)}
    skipped = Loop(folder=tmp_path, **quiet).go()
    kept = Loop(folder=tmp_path, algorithm=WITH_PENALTIES, **quiet).go()
    assert set(skipped.policy.rows_seen) == {1}  # one idle row, at weight 0
    assert set(kept.policy.rows_seen) == {12}
    assert (skipped.gradients[0] == 0).all()
    assert (kept.gradients[0] != 0).any()


def test_skipping_rows_without_advantage_changes_no_gradient(tmp_path):
    @declare(reads={"old_logp"})
    def unskippable(batch):
        return ppo(batch)

    skipped = Loop(folder=tmp_path).go(2)
    full = Loop(folder=tmp_path, algorithm=replace(GRPO, loss=unskippable)).go(2)
    assert sum(skipped.policy.rows_seen) < sum(full.policy.rows_seen)
    assert_close(skipped.gradients, full.gradients, rtol=1e-9, atol=1e-12)


def test_the_gradient_of_the_first_update_is_the_policy_gradient(tmp_path):
    loop = Loop(folder=tmp_path, plan=replace(PLAN, num_minibatches=1, epochs=1))
    prompts = loop.stream.draw(0, 6)
    key = rng.key(0, "rollout", 0)
    rollout = loop.policy.sample(prompts, 4, key=key, slots=range(6))
    advantages = GRPO.advantage(loop.rewards(rollout.outputs, rollout.prompts), rollout)
    logp = loop.policy.logp_under(rollout.sample, loop.policy.table)
    surrogate = -(logp * advantages * reduction.sequence_mean(rollout.mask)).sum()
    (want,) = torch.autograd.grad(surrogate, loop.policy.table)
    assert_close(loop.go().gradients[0], want)


def test_dynamic_sampling_trains_the_wanted_number_of_varied_groups(tmp_path):
    loop = Loop(algorithm=DYNAMIC, folder=tmp_path, rewards=EndsInTwo())
    rollout, scores = DYNAMIC.sampling_strategy(
        loop.source, dict(enumerate(loop.stream.draw(0, 6)))
    )
    trained = rollout.mask.any(1)
    groups = rollout.group[trained].unique()
    assert len(groups) == 6
    assert all(scores.total[trained & (rollout.group == g)].std() > 0 for g in groups)
    assert len(loop.source.taken) == int(loop.source.metrics["dynamic_sampling/rounds"].total) >= 2


def test_dynamic_sampling_keeps_the_rows_of_varied_groups_without_a_trained_step(tmp_path):
    loop = Loop(algorithm=DYNAMIC, folder=tmp_path, rewards=EndsInTwo())
    rollout, scores = loop.source.sample(dict(enumerate(loop.stream.draw(0, 6))))
    untrained = replace(rollout, mask=torch.zeros_like(rollout.mask))
    kept, _ = strategies._first_groups(untrained, scores, 3)
    assert torch.equal(kept.group, rollout.group)


class OtherFails(ShareOfThrees):
    """All groups differ; a second reward fails for all but a sample of the first three."""

    def __call__(self, outputs, prompts) -> Scores:
        scores = ShareOfThrees([float(i % 2) for i in range(len(outputs))])(outputs, prompts)
        failed = torch.tensor([prompt.id < 3 and i % 4 > 0 for i, prompt in enumerate(prompts)])
        return replace(scores, scored=scores.scored & ~failed)


def test_dynamic_sampling_does_not_count_rows_whose_other_reward_failed(tmp_path):
    loop = Loop(algorithm=DYNAMIC, folder=tmp_path, rewards=OtherFails())
    rollout, scores = DYNAMIC.sampling_strategy(
        loop.source, dict(enumerate(loop.stream.draw(0, 6)))
    )
    trained = rollout.mask.any(1)
    assert len(rollout.group[trained].unique()) == 6
    assert scores.scored[trained].all()


def test_dynamic_sampling_gives_up_after_the_rounds_it_was_given(tmp_path):
    stop_early = replace(GRPO, sampling_strategy=partial(strategies.dynamic_sampling, max_rounds=2))
    loop = Loop(
        algorithm=stop_early,
        folder=tmp_path,
        rewards=ShareOfThrees(0.0),
        guards=Guards(no_signal=9),
    ).go()
    assert loop.report["dynamic_sampling/acceptance"] == 0.0
    assert loop.report["dynamic_sampling/rounds"] == 2.0
    assert loop.samples_seen == 48


def test_demonstrations_are_trained_without_a_reward(tmp_path):
    sft = replace(
        GRPO,
        sampling_strategy=strategies.offline,
        advantage=given,
        loss=nll,
        weights=reduction.token_mean,
        importance_sampling=importance.none,
    )
    loop = Loop(algorithm=sft, folder=tmp_path).go(60)
    assert loop.report["actor/nll"] < 0.5  # 3, then 2, then the end token; 1.5 nats at first
    assert "reward/mean" not in loop.report


def test_missing_rewards_stop_the_run_with_their_reasons(tmp_path):
    with pytest.raises(Stop, match=r"100% of the samples have no reward \(24 x not finite\)"):
        Loop(folder=tmp_path, rewards=ShareOfThrees(float("nan"))).go()


def test_samples_are_counted_as_scored_whatever_scores_a_strategy_makes_of_theirs(tmp_path):
    def halved(source, prompts):
        rollout, scores = on_policy(source, prompts)
        return rollout, Scores(total=scores.total / 2, parts={}, scored=scores.scored)

    loop = Loop(folder=tmp_path, algorithm=replace(GRPO, sampling_strategy=halved)).go(1)
    assert loop.report["reward/missing"] == 0


def test_iterations_without_signal_stop_the_run_with_advice(tmp_path):
    loop = Loop(folder=tmp_path, rewards=ShareOfThrees(0.0), guards=Guards(no_signal=2)).go()
    with pytest.raises(Stop, match="raise group_size"):
        loop.go()


@pytest.mark.parametrize(
    ("advantage", "whitened"),
    [(partial(raw_reward, baseline=0.25), False), (batch_relative, False), (reward_to_go, True)],
)
def test_groups_that_tie_are_a_signal_for_what_compares_beyond_them(advantage, whitened, tmp_path):
    alike = ShareOfThrees([1.0] * 8 + [0.0] * 16)  # two of six groups are all right
    algorithm = replace(GRPO, advantage=advantage, normalize_advantages=whitened)
    quiet = {"folder": tmp_path, "rewards": alike, "guards": Guards(no_signal=1)}
    loop = Loop(algorithm=algorithm, **quiet).go()
    assert loop.report["reward/frac_zero_std"] == 1.0
    assert any((gradient != 0).any() for gradient in loop.gradients)
    with pytest.raises(Stop, match="all advantages were 0"):
        Loop(algorithm=GRPO, **quiet).go()


def test_samples_without_groups_have_no_signal_if_all_score_alike(tmp_path):
    algorithm = replace(GRPO, advantage=batch_relative)
    plan = replace(PLAN, group_size=1)
    quiet = {"rewards": ShareOfThrees(1.0), "guards": Guards(no_signal=1)}
    with pytest.raises(Stop, match="all advantages were 0"):
        Loop(algorithm=algorithm, plan=plan, folder=tmp_path, **quiet).go()


@declare(taught=True)
def toward_a_teacher(batch):
    return -batch.logp * batch.taught[:, None]


BY_A_TEACHER = {
    "loss": {"loss": toward_a_teacher},
    "advantage": {"advantage": partial(from_teacher, gamma=0.0)},
}


@pytest.mark.parametrize("parts", BY_A_TEACHER.values(), ids=BY_A_TEACHER)
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_samples_without_a_teacher_have_no_signal_if_it_defines_what_is_learnt(
    share, parts, tmp_path
):
    def taught(source, prompts):
        rollout, scores = on_policy(source, prompts)
        known = torch.arange(len(rollout.group)) < share * len(rollout.group)
        silent = torch.zeros(rollout.mask.shape)
        return replace(rollout, taught=known, teacher_logp=silent), scores

    algorithm = replace(GRPO, **parts, sampling_strategy=taught)
    alike = {"rewards": ShareOfThrees(0.5), "guards": Guards(no_signal=1)}
    loop = Loop(folder=tmp_path, algorithm=algorithm, **alike)
    with nullcontext() if share else pytest.raises(Stop, match="no sample had a teacher, so"):
        loop.go()
    if share:
        assert loop.report["actor/taught"] > 0


def test_a_resumed_run_remembers_how_long_it_had_no_signal(tmp_path):
    quiet = {"rewards": ShareOfThrees(0.0), "guards": Guards(no_signal=3)}
    first, resumed = (Loop(folder=tmp_path, **quiet) for _ in range(2))
    for made in (first, resumed):  # a table has no state but its weights
        made.policy.state, made.policy.load_state = dict, lambda state: None
    resumed.load_state(first.go(2).state())
    with pytest.raises(Stop, match="in 3 iterations in a row"):
        resumed.go()


class Past(StatefulComponent):
    def __init__(self, slots: int) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(slots, dtype=torch.float64))


def test_an_advantage_whose_state_has_another_shape_than_the_checkpoint_s_is_named(tmp_path):
    first, resumed = (
        Loop(folder=tmp_path, algorithm=replace(GRPO, advantage=Past(slots))) for slots in (8, 4)
    )
    for made in (first, resumed):  # a table has no state but its weights
        made.policy.state, made.policy.load_state = dict, dict
    resumed.load_state(resumed.state())
    with pytest.raises(Stop) as told:
        resumed.load_state(first.state())
    line = str(told.value)
    assert line.startswith(f"the state of algorithm.advantage (Past at {place_of(Past)}) does not")
    assert f"continue_from={tmp_path}: size mismatch for average" in line and "\n" not in line


def test_a_gradient_that_is_not_finite_leaves_the_weights_and_a_batch_to_look_at(tmp_path):
    def poisoned(batch):
        return batch.logp * torch.nan

    guards = Guards(non_finite="skip:1")
    loop = Loop(folder=tmp_path, algorithm=replace(GRPO, loss=poisoned), guards=guards)
    before = loop.policy.table.detach().clone()
    with pytest.raises(Stop, match=r"guards\.non_finite=skip"):
        loop.go()
    assert_close(loop.policy.table.detach(), before, rtol=0, atol=0)
    folders = sorted((tmp_path / "failures").iterdir())
    assert [p.name for p in folders] == [f"iteration_000000_update_{i}_rank_0" for i in (0, 1)]
    for folder in folders:
        assert sorted(p.name for p in folder.iterdir()) == ["batch.json", "batch.safetensors"]


def test_a_batch_to_look_at_may_hold_a_picture_twice(tmp_path):
    loop, picture = Loop(folder=tmp_path), torch.full((2, 2, 3), 7, dtype=torch.uint8)
    rollout, scores = loop.source.sample(dict(enumerate(loop.stream.draw(0, 6))))
    rollout = replace(rollout, outputs=(picture,) * len(rollout.mask))
    batch = Experience(rollout=rollout, scores=scores, advantages=rollout.mask.double())
    folder = save_failure(tmp_path, batch, {"iteration": 0, "update": 0, "rank": 0})
    assert torch.equal(load_file(folder / "batch.safetensors")["output.1"], picture)


def test_weights_that_a_step_made_infinite_are_given_to_nobody(tmp_path):
    loop, told = Loop(folder=tmp_path, guards=Guards(non_finite="skip:3")), []

    def note(event):
        told.extend([loop.policy.table.detach().clone()] * (event == "update"))

    loop.policy.notify = note
    loop.go()
    assert len(told) == 4
    loop.only.param_groups[0]["lr"] = float("inf")
    with pytest.raises(Stop, match=r"iteration 1: the optimizer step made weights .* not finite"):
        loop.go()
    assert len(told) == 4 and all(bool(table.isfinite().all()) for table in told)


def test_non_finite_updates_can_be_skipped_and_are_counted(tmp_path):
    def poisoned(batch):
        return batch.logp * torch.nan

    guards = Guards(non_finite="skip:3")
    loop = Loop(folder=tmp_path, algorithm=replace(GRPO, loss=poisoned), guards=guards)
    with pytest.raises(Stop):
        loop.go(2)
    assert loop.skipped_in_a_row == 4


def test_skipped_updates_are_reported_and_remembered(tmp_path):
    calls = count()

    def poisoned_once(batch):
        return batch.logp * (torch.nan if next(calls) == 0 else 1)

    guards = Guards(non_finite="skip:3")
    algorithm = replace(GRPO, loss=poisoned_once)
    loop = Loop(folder=tmp_path, algorithm=algorithm, guards=guards)
    assert loop.go().report["optim/skipped"] == 1
    assert loop.skipped_in_a_row == 0
    resumed = Loop(folder=tmp_path, algorithm=algorithm, guards=guards)
    for made in (loop, resumed):  # a table has no state but its weights
        made.policy.state, made.policy.load_state = dict, dict
    resumed.load_state(loop.state())
    assert resumed.go().report["optim/skipped"] == 1


def test_a_forward_pass_that_is_not_finite_is_a_skipped_update_and_no_wrong_sampler(tmp_path):
    loop = Loop(folder=tmp_path, guards=Guards(non_finite="skip:3"))
    evidence, calls = loop.policy.evidence, count()

    def poisoned_once(rollout, needs):
        said = evidence(rollout, needs)
        return replace(said, logp=said.logp * torch.nan) if next(calls) == 0 else said

    loop.policy.evidence = poisoned_once
    assert loop.go().report["optim/skipped"] == 1
    assert (tmp_path / "failures" / "iteration_000000_update_0_rank_0").is_dir()


def test_wrong_old_log_probabilities_are_found_before_the_first_update(tmp_path):
    loop = Loop(folder=tmp_path)
    complete = loop.policy.complete
    loop.policy.complete = lambda rollout, needs: replace(
        complete(rollout, needs), old_logp=complete(rollout, needs).old_logp + 0.01
    )
    with pytest.raises(Stop, match=r"trainer and sampler differ by 0\.01 nats"):
        loop.go()


def test_a_sampler_that_disagrees_is_named_with_likely_causes(tmp_path):
    loop = Loop(folder=tmp_path)
    sample = loop.policy.sample
    loop.policy.sample = lambda *args, **kw: replace(
        sample(*args, **kw), behaviour_logp=sample(*args, **kw).behaviour_logp - 0.3
    )
    with pytest.raises(Stop, match=r"disagree by 0\.3 nats .*: different temperatures"):
        loop.go()


def test_the_curriculum_hears_of_the_main_stream_only(tmp_path):
    loop = Loop(algorithm=DYNAMIC, folder=tmp_path, rewards=EndsInTwo()).go()
    sources, success = loop.stream.seen
    assert len(sources) == len(success) == 24


def test_fewer_varied_groups_than_minibatches_are_fewer_updates(tmp_path):
    class OneGroup(EndsInTwo):
        def __call__(self, outputs, prompts) -> Scores:
            first = [float(p.id == 0 and i % 2) for i, p in enumerate(prompts)]
            return ShareOfThrees(first)(outputs, prompts)

    once = replace(GRPO, sampling_strategy=partial(strategies.dynamic_sampling, max_rounds=1))
    loop = Loop(algorithm=once, folder=tmp_path, rewards=OneGroup()).go()
    assert loop.report["optim/updates"] == 2  # one group in each of two epochs
    assert (loop.gradients[0] != 0).any()


def test_an_iteration_in_which_every_answer_is_masked_updates_nothing(tmp_path):
    def mask_all(scores, rollout):
        return scores, replace(rollout, mask=torch.zeros_like(rollout.mask))

    loop = Loop(algorithm=replace(GRPO, truncation_handling=mask_all), folder=tmp_path).go()
    assert loop.report["optim/updates"] == 0
    assert loop.gradients == []


def test_a_metric_does_not_depend_on_whether_quiet_rows_were_skipped(tmp_path):
    awake = replace(GRPO, entropy=EntropyBonus(coef=1e-30))
    skipped = Loop(folder=tmp_path, rewards=EndsInTwo()).go(2)
    ran = Loop(folder=tmp_path, rewards=EndsInTwo(), algorithm=awake).go(2)
    assert sum(skipped.policy.rows_seen) < sum(ran.policy.rows_seen)
    shared = skipped.report.keys() & ran.report.keys()
    assert {name: ran.report[name] for name in shared} == pytest.approx(
        {name: skipped.report[name] for name in shared}
    )


def test_a_part_without_gradients_says_nothing_of_where_the_norm_of_the_others_lies():
    parts = [[torch.nn.Parameter(torch.ones(3, device="meta"))] for _ in range(3)]
    for (parameter,) in parts[1:]:
        parameter.grad = torch.ones(3, device="meta")
    assert clip_gradients(parts, 1.0).device.type == "meta"


def test_drift_is_measured_for_losses_that_read_no_old_log_probabilities(tmp_path):
    loop = Loop(folder=tmp_path, algorithm=replace(GRPO, loss=reinforce)).go()
    assert loop.report["actor/approx_kl_k3"] > 0
