"""The handling of truncated and overlong answers."""

from dataclasses import replace

import torch
from records import rollout, scores
from torch.testing import assert_close

from tandem.advantages import shaping

LENGTHS = [16384, 17408, 18432, 20480, 20481]  # DAPO's limit 20480 with its buffer of 4096


def rows(length, truncated=None):
    count = len(length)
    none = torch.zeros(count, dtype=torch.bool)
    return rollout(
        torch.ones(count, 2, dtype=torch.bool),
        torch.zeros(count, dtype=torch.int64),
        length=torch.tensor(length),
        truncated=none if truncated is None else torch.tensor(truncated),
    )


def test_overlong_answers_lose_what_the_paper_says():
    shaped, _ = shaping.overlong(scores(torch.ones(5)), rows(LENGTHS), limit=20480, buffer=4096)
    assert_close(shaped.total, 1 - torch.tensor([0.0, 0.25, 0.5, 1.0, 1.0]))


def test_the_parts_of_a_score_stay_what_the_rewards_said():
    shaped, _ = shaping.overlong(scores(torch.ones(5)), rows(LENGTHS), limit=20480, buffer=4096)
    assert_close(shaped.parts["accuracy"], torch.ones(5))


def test_masked_truncated_answers_keep_their_score():
    before = scores(torch.tensor([1.0, 0.0]))
    after, masked = shaping.mask(before, rows([2, 2], [False, True]))
    assert_close(after.total, before.total)
    assert masked.mask.tolist() == [[True, True], [False, False]]


def test_penalised_answers_lose_a_constant_and_a_missing_score_stays_missing():
    known = torch.tensor([True, True, False])
    before = scores(torch.tensor([1.0, 1.0, 0.0]), known)
    after, _ = shaping.penalise(before, rows([2, 2, 2], [False, True, True]), penalty=0.5)
    assert_close(after.total, torch.tensor([1.0, 0.5, 0.0]))


def test_a_penalty_is_paid_by_the_last_step_where_a_score_is_spread_over_steps():
    """Readers of the steps see it, and the steps still add up to the total."""
    before = scores(torch.ones(2), torch.tensor([True, True]))
    before = replace(before, per_step=torch.tensor([[0.75, 0.25], [1.0, 0.0]]))
    after, _ = shaping.penalise(before, rows([2, 2], [False, True]), penalty=0.5)
    assert_close(after.per_step, torch.tensor([[0.75, 0.25], [1.0, -0.5]]))
    assert_close(after.per_step.sum(1), after.total)


def test_what_a_world_says_makes_no_answer_overlong():
    """Six steps are in use, of which the policy wrote two."""
    turn = torch.tensor([[1, 0, 0, 0, 0, 2]])
    played = rollout(
        turn > 0, torch.zeros(1, dtype=torch.int64), length=torch.tensor([6]), turn=turn
    )
    shaped, _ = shaping.overlong(scores(torch.ones(1)), played, limit=4, buffer=2)
    assert_close(shaped.total, torch.ones(1))
