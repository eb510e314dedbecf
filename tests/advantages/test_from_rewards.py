"""`from_rewards`: an estimator of rewards and a mask gets only scored, trained steps."""

from dataclasses import replace

import pytest
import torch
from records import rollout, scores
from torch.testing import assert_close

from tandem.advantages.adapted import from_rewards
from tandem.advantages.temporal import return_to_go

HOLED = torch.tensor([[1, 1, 0, 1], [1, 0, 0, 0], [1, 1, 1, 1]]).bool()
ROLLOUT = rollout(HOLED, torch.tensor([0, 0, 1]))


def to_go(rewards, mask, *, gamma=1.0, shift=0.0):
    returns = return_to_go(rewards, mask, gamma=gamma)
    return returns + shift, returns


def test_worked_example():
    given = scores(torch.tensor([2.0, 3.0, 4.0]))
    got = from_rewards(to_go)(given, ROLLOUT, gamma=0.5)
    want = [[0.5, 1.0, 0.0, 2.0], [3.0, 0.0, 0.0, 0.0], [0.5, 1.0, 2.0, 4.0]]
    assert_close(got, torch.tensor(want))


def test_a_sample_without_a_score_is_not_there_and_gets_nothing():
    def seen(rewards, mask):
        assert mask.sum(1).tolist() == [3, 0, 4]
        assert rewards.sum(1).tolist() == [2.0, 0.0, 4.0]
        return rewards + 1, rewards

    given = scores(torch.tensor([2.0, 3.0, 4.0]), torch.tensor([True, False, True]))
    got = from_rewards(seen)(given, ROLLOUT)
    assert got.tolist() == [[1, 1, 0, 3], [0, 0, 0, 0], [1, 1, 1, 5]]


def test_a_row_that_others_are_compared_with_is_not_there_either():
    greedy = replace(ROLLOUT, baseline=torch.tensor([False, True, False]))
    got = from_rewards(to_go)(scores(torch.tensor([2.0, 3.0, 4.0])), greedy, shift=1.0)
    assert got.sum(1).tolist() == [9.0, 0.0, 20.0]


def test_scores_that_are_spread_over_steps_are_handed_on():
    spread = torch.tensor([[1.0, 0.0, 9.0, 1.0], [3.0, 9.0, 9.0, 9.0], [1.0, 1.0, 1.0, 1.0]])
    given = replace(scores(torch.tensor([2.0, 3.0, 4.0])), per_step=spread)
    got = from_rewards(to_go)(given, ROLLOUT)
    assert_close(got, torch.tensor([[2.0, 1, 0, 1], [3, 0, 0, 0], [4, 3, 2, 1]]))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda r: (r[:, :1], r), r"wrong\.advantages is \(3, 1\), but it should be \(3, 4\)"),
        (lambda r: (r, r.sum(1)), r"wrong\.returns is \(3,\), but it should be \(3, 4\)"),
        (lambda r: r, r"wrong\(rewards, mask\) gives .* tensors \[3, 4\], but it gave Tensor"),
        (lambda r: (r, None), "but it gave tuple"),
    ],
)
def test_answers_of_another_shape_are_refused(answer, said):
    def wrong(rewards, mask):
        return answer(rewards)

    with pytest.raises(ValueError, match=said):
        from_rewards(wrong)(scores(torch.tensor([2.0, 3.0, 4.0])), ROLLOUT)
