"""What is logged of answers: steps that were taken count, and padding does not."""

import pytest
import torch
from records import rollout

from tandem.metrics import response_metrics

TAKEN = torch.tensor([[True, True, False], [True, False, False]])


def test_entropy_is_the_mean_over_the_steps_of_the_mask():
    entropy = torch.tensor([[1.0, 2.0, 90.0], [3.0, 90.0, 90.0]])
    rows = rollout(TAKEN, torch.zeros(2, dtype=torch.int64), entropy=entropy)
    assert response_metrics(rows)["actor/entropy"] == pytest.approx(2.0)


def test_an_answer_that_is_not_trained_keeps_its_length():
    trained = TAKEN & torch.tensor([[True], [False]])
    length, cut = torch.tensor([2, 1]), torch.tensor([False, True])
    rows = rollout(trained, torch.zeros(2, dtype=torch.int64), length=length, truncated=cut)
    want = {"response/length_mean": 1.5, "response/length_max": 2, "response/truncated": 0.5}
    assert response_metrics(rows) == pytest.approx(want)
