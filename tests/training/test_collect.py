"""Preference rows and baseline rows: which parts get them, and which metrics count them."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from loop import PLAN, EndsInTwo, Loop, ShareOfThrees, Stream
from records import GRPO
from torch.testing import assert_close
from two_ranks import on_two_ranks

from tandem.advantages.preference import preferred
from tandem.contracts import facts_of
from tandem.contracts.wrong_output import WrongOutput
from tandem.experience import Budget
from tandem.losses import importance, reduction
from tandem.losses.kto import kto
from tandem.losses.preference import dpo, orpo, simpo
from tandem.training import collect, strategies
from tandem.types import Prompt, Scores

DPO = replace(
    GRPO, sampling_strategy=strategies.preference_pairs, advantage=preferred, loss=dpo,
    weights=reduction.sequence_mean, importance_sampling=importance.none,
)  # fmt: skip
KTO = replace(DPO, sampling_strategy=strategies.kto_kl, loss=kto)
ONLINE = replace(DPO, sampling_strategy=strategies.best_and_worst)
SIX = dict(enumerate(Stream().draw(0, 6)))


class PairStream(Stream):
    """The chosen answers have threes and are short."""

    def draw(self, iteration: int, count: int, *, round: int = 0) -> list[Prompt]:
        endings = ("41", "5", "245", "1")
        return [
            replace(
                prompt, chosen=("33", "3", "32")[prompt.id % 3], rejected=endings[prompt.id % 4]
            )
            for prompt in super().draw(iteration, count, round=round)
        ]


def loop(algorithm, folder, *, rewards=None, budget=None, prompts=6) -> Loop:
    plan = replace(PLAN, prompts_per_step=prompts, epochs=1, budget=budget or Budget())
    made = Loop(algorithm=algorithm, plan=plan, folder=folder, rewards=rewards)
    made.stream = made.source.stream = PairStream()
    return made


def pairs(count=3):
    return dict(enumerate(PairStream().draw(0, count)))


def test_a_pair_is_two_rows_of_one_group_of_which_the_chosen_scores(tmp_path):
    rollout, scores = strategies.preference_pairs(loop(DPO, tmp_path).source, pairs())
    assert rollout.group.tolist() == [0, 1, 2, 0, 1, 2]
    assert rollout.outputs == ("330", "30", "320", "410", "50", "2450")
    assert scores.total.tolist() == [1, 1, 1, 0, 0, 0]
    assert scores.parts == {}
    assert rollout.baseline is None
    assert preferred(scores, rollout)[:, 0].tolist() == [1, 1, 1, -1, -1, -1]


def test_mismatched_rows_ask_one_prompt_and_answer_another(tmp_path):
    source = loop(KTO, tmp_path, prompts=3).source
    asked = pairs()
    rollout, scores = strategies.kto_kl(source, asked)
    assert rollout.baseline.tolist() == [False] * 6 + [True] * 6
    assert rollout.group.tolist() == [0, 1, 2] * 4
    assert rollout.outputs[6:] == ("320", "330", "30", "2450", "410", "50")
    assert [prompt.id for prompt in rollout.prompts] == [prompt.id for prompt in asked.values()] * 4
    assert not preferred(scores, rollout)[6:].any()
    assert sum(len(rows.mask) for rows, _ in source.taken) == 6
    assert source.samples == 12


def test_a_prompt_that_comes_twice_gets_the_answers_to_another_one(tmp_path):
    first, second, third = PairStream().draw(0, 3)
    made = loop(KTO, tmp_path, prompts=5)
    made.source.stream.draw = lambda iteration, count: [first, second, second, third, first]
    rollout, _ = strategies.kto_kl(made.source, dict(enumerate(made.source.prompts())))
    got = [output.removesuffix("0") for output in rollout.outputs[10:15]]
    assert got == [p.chosen for p in (third, first, first, second, third)]
    made.source.stream.draw = lambda iteration, count: [first] * count
    with pytest.raises(
        ValueError, match=r"all 5 prompts of this iteration are 0; give at least two pairs"
    ):
        strategies.kto_kl(made.source, {0: first})


def test_a_single_prompt_has_no_mismatched_answers(tmp_path):
    with pytest.raises(ValueError, match="set prompts_per_step=2"):
        strategies.kto_kl(loop(KTO, tmp_path, prompts=1).source, pairs(1))


def test_of_each_group_the_best_and_the_worst_are_kept(tmp_path):
    source = loop(ONLINE, tmp_path, rewards=EndsInTwo()).source
    rollout, scores = strategies.best_and_worst(source, SIX)
    ((everything, of_all),) = source.taken
    varied = [g for g in range(6) if of_all.total[everything.group == g].unique().numel() == 2]
    assert 0 < len(varied) < 6
    kept = rollout.mask.any(1)
    assert sorted(rollout.group[kept].tolist()) == sorted(2 * varied)
    for group in varied:
        found = scores.total[kept & (rollout.group == group)]
        assert sorted(found.tolist()) == [0, 1]
    assert len(rollout.mask) == 2 * len(varied) + 1, "a bystander, so that no rank is without a row"
    noted = source.metrics["preference/pairs"]
    assert (noted.total, noted.count) == (len(varied), 6)
    assert len(everything.mask) == source.samples == 24


@pytest.mark.parametrize("missing", ["steps", "scores"])
def test_an_answer_without_a_trained_step_or_a_score_is_no_best_and_no_worst(missing, tmp_path):
    """Rows 0 and 3 of a group of four would be the extremes: the pair consists of rows 1 and 2."""
    source = loop(ONLINE, tmp_path).source
    rollout, scores = source.sample(SIX)
    inner = torch.tensor([False, True, True, False]).repeat(6)
    total = torch.tensor([9.0, 2.0, 1.0, -9.0]).repeat(6)
    if missing == "steps":
        rollout = replace(rollout, mask=rollout.mask & inner[:, None])
        inner = torch.ones_like(inner)
    source.sample = lambda prompts: (rollout, replace(scores, total=total, scored=inner))
    kept, of_kept = strategies.best_and_worst(source, SIX)
    assert sorted(of_kept.total[kept.mask.any(1)].tolist()) == 6 * [1.0] + 6 * [2.0]
    assert len(kept.mask) == 6 * 2 + 1


def test_where_every_group_ties_nothing_is_preferred_and_the_weights_stay(tmp_path):
    tied = loop(ONLINE, tmp_path, rewards=ShareOfThrees(0.5)).go()
    assert tied.report["preference/pairs"] == 0
    assert not any(gradient.any() for gradient in tied.gradients)
    assert "preference/accuracy" not in tied.report


def test_a_greedy_row_stands_in_each_group_and_in_no_statistic(tmp_path):
    source = loop(GRPO, tmp_path).source
    rollout, scores = strategies.remax(source, SIX)
    assert rollout.baseline.tolist() == [False] * 24 + [True] * 6
    assert rollout.group[24:].tolist() == list(range(6))
    likeliest = source.policy.table.argmax(1)
    first = rollout.sample.tokens[24:, 0]
    assert torch.equal(first, likeliest[rollout.sample.before[24:, 0]])
    share = [output.count("3") / max(len(output), 1) for output in rollout.outputs[24:]]
    assert_close(scores.total[24:], torch.tensor(share, dtype=torch.float64))
    assert sum(len(rows.mask) for rows, _ in source.taken) == 24
    assert (source.samples, source.steps) == (30, int(rollout.length.sum()))


def test_rows_to_compare_with_are_counted_as_samples_but_not_as_rewards(tmp_path):
    plain = Loop(folder=tmp_path).go()
    beside = Loop(algorithm=replace(GRPO, sampling_strategy=strategies.remax), folder=tmp_path).go()
    assert (plain.samples_seen, beside.samples_seen) == (24, 30)
    for name in ("reward/mean", "reward/std", "response/length_mean"):
        assert beside.report[name] == plain.report[name]


def test_ways_of_collecting_say_what_they_supply():
    supplied = {
        collect.on_policy: set(),
        strategies.preference_pairs: {"pairs"},
        strategies.kto_kl: {"pairs", "baseline"},
        strategies.best_and_worst: {"pairs"},
        strategies.remax: {"baseline"},
        partial(strategies.dynamic_sampling, max_rounds=1): set(),
    }
    assert {way: facts_of(way).gives for way in supplied} == supplied


@pytest.mark.parametrize("loss", [dpo, simpo, orpo], ids=lambda loss: loss.__name__)
def test_pairs_are_learnt(loss, tmp_path):
    trained = loop(replace(DPO, loss=loss), tmp_path)
    first = trained.go().report
    last = trained.go(30).report
    assert last["preference/margin"] > first["preference/margin"] + 0.1
    assert last["preference/accuracy"] == 1.0
    assert "reward/mean" not in last


def test_good_and_bad_rows_are_learnt_by_themselves(tmp_path):
    trained = loop(KTO, tmp_path)
    first = trained.go().report
    last = trained.go(30).report
    margin = [
        r["preference/chosen_reward"] - r["preference/rejected_reward"] for r in (first, last)
    ]
    assert margin[1] > margin[0] + 0.1
    assert last["preference/mismatched_kl"] >= 0


def test_samples_can_be_preferred_to_one_another(tmp_path):
    trained = loop(replace(ONLINE, loss=partial(dpo, beta=0.5)), tmp_path)
    first = trained.go().report["reward/mean"]
    assert trained.go(40).report["reward/mean"] > first + 0.2


@pytest.mark.parametrize("algorithm", [DPO, KTO, ONLINE], ids=["dpo", "kto", "online"])
@pytest.mark.parametrize("budget", [Budget(rows=1), Budget(rows=5), Budget(max_tokens=9)], ids=str)
def test_any_cut_gives_the_same_gradient_and_metrics(algorithm, budget, tmp_path):
    whole = loop(algorithm, tmp_path).go(2)
    cut = loop(algorithm, tmp_path, budget=budget).go(2)
    assert max(cut.policy.rows_seen) < max(whole.policy.rows_seen)
    assert_close(cut.gradients, whole.gradients, rtol=1e-9, atol=1e-12)
    assert_close(cut.report, whole.report, rtol=1e-9, atol=1e-12)


def learnt(algorithm, folder, **budget):
    # Five prompts: one rank has three groups and the other two, so their cuts differ in number.
    made = loop(algorithm, folder, rewards=EndsInTwo(), prompts=5, **budget).go(2)
    return [gradient.numpy() for gradient in made.gradients], made.report


OF_PAIRS = {"dpo": DPO, "kto": KTO, "online": ONLINE}


@pytest.fixture(scope="module")
def of_two_ranks(tmp_path_factory):
    cut = partial(learnt, folder=tmp_path_factory.mktemp("ranks"), budget=Budget(rows=2))
    return on_two_ranks({name: partial(cut, replace(own)) for name, own in OF_PAIRS.items()})


@pytest.mark.system
@pytest.mark.parametrize("name", OF_PAIRS)
def test_two_ranks_are_one(name, tmp_path, of_two_ranks):
    alone = loop(OF_PAIRS[name], tmp_path, rewards=EndsInTwo(), prompts=5).go(2)
    for rank in range(2):
        gradients, report = of_two_ranks[rank, name]
        got = [torch.from_numpy(gradient) for gradient in gradients]
        assert_close(got, alone.gradients, rtol=1e-9, atol=1e-12)
        assert report == pytest.approx(alone.report, rel=1e-9, abs=1e-12)


def test_the_part_that_decides_is_the_first_that_judges_a_prompt():
    nan = torch.nan
    parts = {"a": torch.tensor([1.0, nan, nan]), "b": torch.tensor([5.0, 6.0, 7.0])}
    scores = Scores(total=torch.ones(3), parts=parts, scored=torch.ones(3).bool())
    own = (None, ("b",), ("b", "a"))
    prompts = [Prompt(id=i, source="s", text="?", rewards=r) for i, r in enumerate(own)]
    assert_close(scores.part(None, prompts), torch.tensor([1.0, 6.0, nan]), equal_nan=True)
    assert scores.part("b", prompts) is scores.parts["b"]
    with pytest.raises(ValueError, match=r"no reward is called 'c'; add it: reward=.a,b,c.$"):
        scores.part("c", prompts)


def test_a_mix_is_samples_in_its_share_of_iterations_and_demonstrations_in_the_others():
    said = SimpleNamespace(sample=lambda prompts: "sampled", demonstrations=lambda prompts: "given")

    def rows(iteration, seed=0, **share):
        source = SimpleNamespace(iteration=iteration, plan=replace(PLAN, seed=seed), **vars(said))
        return strategies.mixed(source, {}, **share)

    half = [rows(iteration) for iteration in range(400)]
    assert 170 < half.count("sampled") < 230
    assert half == [rows(iteration) for iteration in range(400)]
    assert half != [rows(iteration, seed=1) for iteration in range(400)]
    assert {rows(iteration, sampled=1.0) for iteration in range(50)} == {"sampled"}
    assert {rows(iteration, sampled=0.0) for iteration in range(50)} == {"given"}


def test_a_judge_decides_nothing_where_another_judges():
    parts = {"a": torch.full((2,), torch.nan), "b": torch.tensor([5.0, 6.0])}
    judge = {"judge": torch.tensor([9.0, 9.0])}
    known = torch.ones(2).bool()
    scores = Scores(total=torch.ones(2), parts=parts, scored=known, judges=judge)
    own = (("judge", "b"), ("b", "judge"))
    prompts = [Prompt(id=i, source="s", text="?", rewards=r) for i, r in enumerate(own)]
    assert scores.part(None, prompts).tolist() == [5.0, 6.0]


def test_a_slot_is_sampled_once_in_an_iteration_as_its_noise_is_always_the_same(tmp_path):
    source = loop(ONLINE, tmp_path).source
    source.sample(SIX)
    source.sample({6: SIX[0]})
    with pytest.raises(WrongOutput, match=r"iteration 0: .* samples slot 3 twice, .*group_size"):
        source.sample({9: SIX[0], 3: SIX[3]})
    source.begin(1)
    source.sample(SIX)
