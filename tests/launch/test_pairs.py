"""Pairs on their way to a policy: completed once, admitted whole, and measured when held out."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Barrier

import pytest
import torch
from policies.small_language import NOTHING, questions, small, train_briefly
from torch.testing import assert_close

from tandem.advantages.group import group_relative
from tandem.data import Data
from tandem.evaluation.preference_accuracy import compare_pairs
from tandem.evaluation.settings import Answers
from tandem.launch import pairs
from tandem.losses.policy import ppo
from tandem.losses.preference import dpo, simpo
from tandem.policies.language.records import Sampling
from tandem.types import Prompt

REFERENCE = frozenset({"ref_logp"})
WRONG = ("abdc", "fa", "j", "c", "gb", "acedh", "ab", "bdjf")


def with_answers():
    return [
        replace(prompt, chosen=prompt.answer, rejected=wrong)
        for prompt, wrong in zip(questions(), WRONG, strict=True)
    ]


def data(tries=4):
    prompts = questions()
    return Data(
        train=tuple(prompts), eval=tuple(prompts[6:]), pairs=tuple(prompts[:6]), tries=tries
    )


@pytest.fixture(scope="module")
def policy():
    return small(REFERENCE, sampling=Sampling(max_new_tokens=11))


def test_the_policy_completes_pairs_and_held_out_prompts(policy, tmp_path, capsys):
    file = tmp_path / "cache" / "pairs.jsonl"
    got = pairs.complete_pairs(policy, data(), file, seed=0)
    assert got.tries is None
    said = [p for p in (*got.pairs, *got.eval) if p.chosen is not None]
    assert said
    assert all(p.chosen == p.answer and p.rejected not in (None, p.answer) for p in said)
    silent = {row.id for row in got.quarantine}
    assert {p.id for p in got.pairs} | silent == set(range(6))
    assert [p.id for p in got.eval] == [6, 7]
    assert str(file) in capsys.readouterr().out


def test_what_was_completed_is_read_the_next_time(policy, tmp_path):
    file = tmp_path / "pairs.jsonl"
    first = pairs.complete_pairs(policy, data(), file, seed=0)
    stored = file.read_bytes()
    assert pairs.complete_pairs(None, data(), file, seed=0) == first
    assert file.read_bytes() == stored
    again = tmp_path / "again.jsonl"
    assert pairs.complete_pairs(policy, data(), again, seed=0) == first
    assert again.read_bytes() == stored


def test_pairs_of_runs_at_the_same_time_are_sampled_once(policy, tmp_path, monkeypatch):
    file, makes = tmp_path / "pairs.jsonl", []
    make, together = pairs._make, Barrier(2)

    def make_slowly(*given):
        makes.append(given)
        time.sleep(0.5)
        make(*given)

    def complete(_):
        together.wait()
        return pairs.complete_pairs(policy, data(), file, seed=0)

    monkeypatch.setattr(pairs, "_make", make_slowly)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(complete, range(2))
    assert first == second and len(makes) == 1


def test_a_model_that_says_nothing_wrong_gives_no_pairs(policy, tmp_path):
    nothing = replace(policy.sampling, temperature=0.0)
    says = policy.sample(questions(), 1, key=0, slots=range(8), sampling=nothing).outputs
    right = [replace(p, answer=said) for p, said in zip(questions(), says, strict=True)]
    policy = small(REFERENCE, sampling=nothing)
    perfect = Data(train=tuple(right), eval=(), pairs=tuple(right), tries=2)
    with pytest.raises(ValueError, match=r"data\.tries=2: the starting model answers none of"):
        pairs.complete_pairs(policy, perfect, tmp_path / "pairs.jsonl", seed=0)


def test_a_pair_is_admitted_if_both_of_its_answers_fit(policy):
    long, short = "a" * 70, "ab"
    offered = [
        Prompt(id=0, source="s", text="ba>", chosen=short, rejected="ba"),
        Prompt(id=1, source="s", text="ba>", chosen=long, rejected=short),
        Prompt(id=2, source="s", text="ba>", chosen=short, rejected=long),
        Prompt(id=3, source="s", text="?!>", chosen=short, rejected="ba"),
    ]
    kept, dropped = pairs.admit_pairs(policy, offered)
    assert [p.id for p in kept] == [0]
    assert kept[0] is offered[0]
    reasons = {p.id: reason for p, reason in dropped}
    assert "tokens with its answer" in reasons[1]
    assert "tokens with its answer" in reasons[2]
    assert "does not know" in reasons[3]
    plain = replace(questions()[0], id=9)
    asked, left_out = pairs.admit_with_pairs(policy, [*offered, plain])
    assert [p.id for p in asked] == [0, 9]
    assert {p.id for p, _ in left_out} == {1, 2, 3}


def test_mismatched_pairs_are_admitted_if_every_prompt_fits_with_every_answer(policy):
    lengths = {0: (3, 2), 1: (20, 30), 2: (20, 31), 3: (22, 4), 4: (33, 4), 5: (4, 54), 6: (3, 70)}
    offered = [
        Prompt(id=id, source="s", text="a" * (asked - 1) + ">", chosen="a" * said, rejected="b")
        for id, (asked, said) in lengths.items()
    ]
    kept, dropped = pairs.admit_mismatched(policy, offered)
    assert [p.id for p in kept] == [0, 1, 2, 3]
    for asked in kept:
        shown = [replace(asked, answer=x) for p in kept for x in (p.chosen, p.rejected)]
        policy.encode(shown, key=0, slots=range(len(shown)))
    reasons = {p.id: reason for p, reason in dropped}
    assert reasons.keys() == {4, 5, 6}
    assert "has 33 tokens and up to 5 in an answer" in reasons[4]
    assert "at most 22 and 42 tokens fit" in reasons[5]
    assert "more than the model's limit of 64" in reasons[6]
    assert [p.id for p in pairs.admit_pairs(policy, offered)[0]] == [0, 1, 2, 3, 4, 5]


def test_questions_are_cut_where_most_pairs_are_left():
    asked, said = torch.tensor([5, 2, 2, 9, 9]), torch.tensor([1, 8, 7, 1, 1])
    assert pairs.longest_question(asked, said, 10) == 9
    assert pairs.longest_question(asked[:4], said[:4], 10) == 2
    assert pairs.longest_question(asked, said, 100) == 9


compared = partial(
    compare_pairs,
    settings=Answers(every=1, prompts=None, samples=1, pass_at=(), temperatures=(1.0,)),
    key=0,
)


def test_a_policy_says_nothing_against_its_reference_before_it_is_trained(policy):
    got = compared(policy, dpo, with_answers())
    assert got == {"eval/pair_accuracy": 0.5, "eval/pair_margin": 0.0}


def test_held_out_pairs_are_compared_by_the_reward_of_the_loss():
    policy = train_briefly(small(REFERENCE), steps=30)
    asked = with_answers()

    def logp(side):
        rows = policy.encode([replace(p, answer=side(p)) for p in asked], key=0, slots=range(8))
        rows = policy.complete(rows, REFERENCE)
        return policy.evidence(rows, NOTHING).logp.detach(), rows.ref_logp, rows.mask.sum(1)

    (new, old, n), (worse, was, m) = logp(lambda p: p.chosen), logp(lambda p: p.rejected)
    ratio = (new - old).sum(1) - (worse - was).sum(1)
    mean = new.sum(1) / n - worse.sum(1) / m
    got = compared(policy, partial(dpo, beta=0.2), asked)
    ahead = (ratio > 0).float()  # no two answers are equal, so rounding does not decide their order
    assert got["eval/pair_accuracy"] == ahead.mean().item()
    assert got["eval/pair_margin"] == pytest.approx(0.2 * ratio.mean().item(), abs=1e-5)
    alone = compared(policy, partial(simpo, beta=2.0), asked)
    assert_close(torch.tensor(alone["eval/pair_margin"]), 2 * mean.mean(), check_dtype=False)
    few = replace(policy.sampling, max_rows=4)
    policy.sampling = few
    assert compared(policy, partial(dpo, beta=0.2), asked) == pytest.approx(got, abs=1e-5)


def test_without_pairs_or_preference_nothing_is_measured(policy):
    assert compared(policy, dpo, questions()) == {}
    assert compared(policy, ppo, with_answers()) == {}
    assert compared(policy, group_relative, with_answers()) == {}
