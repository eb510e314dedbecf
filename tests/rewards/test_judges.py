"""A reward of weight 0 is measured and never trained, and nothing else depends on it."""

import math

import pytest
import torch
from loop import Loop
from torch.testing import assert_close

from tandem.advantages.parts import gdpo
from tandem.policies.language.records import Answers
from tandem.rewards import Reward, Rewards
from tandem.training.ahead import Ticket
from tandem.training.ahead_rows import Sampled, group_tensors, restore_group
from tandem.types import Prompt

PROMPTS = [Prompt(id=i, source="test", text="?") for i in range(4)]
OUTPUTS = ["3", "33", "1", "13"]


def threes(output, prompt):
    return output.count("3") / max(len(output), 1)


def breaks(output, prompt):
    raise RuntimeError("the judge is gone")


JUDGES = {"answers": lambda o, p: float(p.id), "abstains": lambda o, p: None, "breaks": breaks}


@pytest.mark.parametrize("judge", JUDGES.values(), ids=JUDGES)
def test_scores_are_the_same_bits_with_and_without_it(judge):
    trained = {"threes": Reward(threes, weight=0.3)}
    without = Rewards(trained)(OUTPUTS, PROMPTS)
    both = Rewards({"judge": Reward(judge, weight=0.0), **trained})
    with_it = both(OUTPUTS, PROMPTS)
    assert torch.equal(with_it.total, without.total)
    assert torch.equal(with_it.scored, without.scored)
    assert list(with_it.parts) == ["threes"] and list(with_it.judges) == ["judge"]
    assert both.pop_faults() == {}


def test_a_judge_that_fails_sets_no_row_aside_and_says_why():
    rewards = Rewards({"threes": Reward(threes), "judge": Reward(breaks, weight=0.0)})
    scores = rewards(OUTPUTS, PROMPTS)
    assert scores.scored.all() and scores.reward("judge").isnan().all()
    assert rewards.pop_faults() == {}
    [(reason, count)] = rewards.pop_faults(judges=True).items()
    assert reason.startswith("judge: raised RuntimeError: 'the judge is gone'") and count == 4
    assert rewards.pop_faults(judges=True) == {}


def test_where_nothing_is_trained_judges_are_measured_and_no_score_is_missing():
    """A teacher may provide the training signal, and an evaluation trains nothing."""
    scores = Rewards({"judge": Reward(threes, weight=0.0)})(OUTPUTS, PROMPTS)
    assert scores.scored.all() and not scores.total.any()
    assert scores.part(None, PROMPTS).tolist() == [1.0, 1.0, 0.0, 0.5]


def test_what_only_the_judge_scored_has_no_score():
    silent = Reward(lambda o, p: None)
    scores = Rewards({"silent": silent, "judge": Reward(threes, weight=0.0)})(OUTPUTS, PROMPTS)
    assert not scores.scored.any()


def test_a_judge_rests_between_the_iterations_it_is_asked_in():
    asked = []
    judge = Reward(lambda o, p: asked.append(o) or 1.0, weight=0.0, every=3)
    rewards = Rewards({"threes": Reward(threes), "judge": judge})
    for iteration in range(4):
        known = ~rewards.begin(OUTPUTS, PROMPTS, iteration=iteration)().reward("judge").isnan()
        assert known.tolist() == [iteration % 3 == 0] * 4
    assert len(asked) == 2 * len(OUTPUTS)
    assert not rewards(OUTPUTS, PROMPTS).reward("judge").isnan().any()  # as in evaluations


def test_an_estimator_of_single_rewards_leaves_it_out():
    rows = Loop(folder=None).policy.sample(PROMPTS[:1], 4, key=3, slots=[0])
    trained = {"threes": Reward(threes)}
    judge = Reward(lambda o, p: -threes(o, p), weight=0.0)
    one, other = (
        gdpo(Rewards(own)(OUTPUTS, PROMPTS, rows.group), rows)
        for own in (trained, trained | {"judge": judge})
    )
    assert one.abs().sum() > 0 and torch.equal(one, other)


def test_a_run_is_the_same_bits_beside_it(tmp_path):
    trained = {"threes": Reward(threes)}
    calls = []

    def flaky(output, prompt):
        calls.append(output)
        return breaks(output, prompt) if len(calls) % 3 else float(len(output))

    judges = trained | {"judge": Reward(flaky, weight=0.0)}
    plain, beside = (Loop(rewards=Rewards(own), folder=tmp_path).go(3) for own in (trained, judges))
    assert_close(plain.policy.table, beside.policy.table, rtol=0, atol=0)
    for before, after in zip(plain.reports, beside.reports, strict=True):
        more = {n: x for n, x in after.items() if "judge" in n or "judge_faults" in n}
        assert {n: x for n, x in after.items() if n not in more} == before
        assert more["reward/judge_faults"] > 0 and math.isfinite(more["reward/judge/mean"])


def test_a_group_in_a_checkpoint_keeps_its_judges_and_the_order_of_its_rewards():
    judge, length = Reward(lambda o, p: 2.0, weight=0.0), Reward(lambda o, p: float(len(o)))
    rewards = Rewards({"threes": Reward(threes), "judge": judge, "length": length})
    scores = rewards(OUTPUTS, PROMPTS)
    zeros = torch.zeros(4, 2)
    answers = Answers(
        tokens=zeros.long(), logp=zeros, entropy=None, length=zeros[:, 0].long(),
        truncated=zeros[:, 0].bool(),
    )  # fmt: skip
    ticket = Ticket(1, 2)
    row = Sampled(rollout=None, answers=answers, versions=zeros.long(), scores=lambda: scores)
    state = dict(sorted(group_tensors(ticket, [row])))  # as files order it
    found = restore_group(ticket, 0, state, lambda answers: None, list(rewards.components)).scores()
    assert list(found.parts) == ["threes", "length"] and list(found.judges) == ["judge"]
    assert_close(found.judges["judge"], torch.full((4,), 2.0))
    older = {name: x for name, x in state.items() if not name.endswith("faults")}
    restored = restore_group(ticket, 0, older, lambda answers: None, list(rewards.components))
    again = dict(group_tensors(ticket, [restored]))  # saved before it is trained
    assert again.keys() == state.keys()


REFUSED = {
    "often": ({"every": 2}, "every=2 of a reward of weight 1: a trained reward must score"),
    "never": ({"weight": 0.0, "every": 0}, "every=0 of a reward of weight 0"),
}


@pytest.mark.parametrize(("options", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_meant_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        Rewards({"a": Reward(threes, **options)})
