"""The additional context of a teacher's prompt, and rows that get none."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from tandem.contracts import facts_of
from tandem.training.collect import on_policy
from tandem.training.reprompts import (
    Reprompted,
    demonstration,
    successful_peer,
    with_solution,
)
from tandem.training.strategies import best_and_worst
from tandem.types import Prompt, Rollout, Scores

NAN = float("nan")
QUESTION = Prompt(id=0, source="sort", text="dbca>", answer="abcd")
TURNS = ({"role": "system", "content": "Sort."}, {"role": "user", "content": "dbca {solution}"})
SHORT = "{solution} {prompt}"


def texts(prompts):
    return [None if prompt is None else prompt.text for prompt in prompts]


def test_a_sample_is_shown_the_next_right_answer_that_is_not_its_own():
    outputs, scores = ["a", "b", "c", "d"], [0.0, 1.0, NAN, 0.5]
    shown = successful_peer(QUESTION, outputs, scores, template=SHORT)
    assert texts(shown) == ["b dbca>", "d dbca>", "d dbca>", "b dbca>"]
    alone = successful_peer(QUESTION, outputs, [0.0, 1.0, NAN, 0.4], template=SHORT)
    assert texts(alone) == ["b dbca>", None, "b dbca>", "b dbca>"]
    assert texts(successful_peer(QUESTION, outputs, [0.0] * 4)) == [None] * 4
    strict = partial(successful_peer, template=SHORT, success=1.0)
    assert texts(strict(QUESTION, outputs, scores)) == ["b dbca>", None, "b dbca>", "b dbca>"]


def test_a_demonstration_is_shown_to_all_samples_where_there_is_one():
    shown = demonstration(QUESTION, ["a", "b"], [0.0, 1.0], template=SHORT)
    assert texts(shown) == ["abcd dbca>"] * 2
    assert demonstration(replace(QUESTION, answer=None), ["a"], [0.0]) == [None]
    answered = (*TURNS, {"role": "assistant", "content": "abcd"})
    (told,) = demonstration(
        Prompt(id=0, source="sort", messages=answered), ["a"], [0.0], template=SHORT
    )
    assert [turn["role"] for turn in told.messages] == ["system", "user"]
    assert told.messages[-1]["content"] == "abcd dbca {solution}"


def test_what_stands_in_braces_in_a_prompt_or_an_answer_stays_as_it_is():
    prompt = Prompt(id=0, source="code", messages=TURNS)
    told = with_solution(prompt, "{prompt} {x}", "{prompt}: {solution}!")
    assert told.messages[-1]["content"] == "dbca {solution}: {prompt} {x}!"
    assert told.messages[0] == TURNS[0] and prompt.messages == TURNS


class Source:
    """Two groups with alternating rows."""

    def sample(self, prompts):
        total = torch.tensor([0.0, 1.0, 1.0, 0.0, 0.0, 0.0])
        rollout = Rollout(
            sample=None, outputs=tuple("abcdef"), mask=torch.ones(6, 1, dtype=torch.bool),
            prompts=tuple(replace(QUESTION, text=f"{i % 2}>") for i in range(6)),
            group=torch.tensor([5, 9, 5, 9, 5, 9]), length=torch.ones(6, dtype=torch.int64),
            truncated=torch.zeros(6, dtype=torch.bool),
        )  # fmt: skip
        return rollout, Scores(total=total, parts={}, scored=torch.ones(6, dtype=torch.bool))


def test_a_group_is_told_of_itself_alone():
    shown = Reprompted(of=on_policy, reprompt=partial(successful_peer, template=SHORT))
    rollout, scores = shown(Source(), {})
    assert texts(rollout.reprompts) == ["c 0>", None, None, "b 1>", "c 0>", "b 1>"]
    assert rollout.taught.tolist() == [True, False, False, True, True, True]
    assert torch.equal(scores.total, Source().sample({})[1].total)


def test_a_function_of_somebody_else_is_called_by_the_same_code():
    def mine(prompt, outputs, scores, *, word):
        return [replace(prompt, text=f"{word} {prompt.text}") if s else None for s in scores]

    rollout, _ = Reprompted(of=on_policy, reprompt=partial(mine, word="well"))(Source(), {})
    assert texts(rollout.reprompts) == [None, "well 1>", "well 0>", None, None, None]


def test_a_function_that_forgets_a_sample_is_an_error():
    with pytest.raises(ValueError, match="returned a list of 1 for 3 outputs"):
        Reprompted(of=on_policy, reprompt=lambda prompt, outputs, scores: [None])(Source(), {})


def test_it_gives_and_reads_what_the_strategy_in_it_does():
    facts = facts_of(Reprompted(of=best_and_worst, reprompt=successful_peer))
    assert facts.gives == {"pairs", "reprompts"} and facts.option == "reprompted"
    assert {"steps", "pictures"} <= {*facts.refused}
