"""Logged metrics of answers: sampled steps count, and padding does not."""

import pytest
import torch
from records import rollout

from tandem.metrics import response_metrics, staleness_metrics

TAKEN = torch.tensor([[True, True, False], [True, False, False]])


def test_entropy_is_the_mean_over_the_steps_of_the_mask():
    entropy = torch.tensor([[1.0, 2.0, 90.0], [3.0, 90.0, 90.0]])
    rows = rollout(TAKEN, torch.zeros(2, dtype=torch.int64), entropy=entropy)
    assert response_metrics(rows)["actor/entropy"] == pytest.approx(2.0)


def test_an_answer_that_is_not_trained_keeps_its_length():
    trained = TAKEN & torch.tensor([[True], [False]])
    length, cut = torch.tensor([2, 1]), torch.tensor([False, True])
    rows = rollout(trained, torch.zeros(2, dtype=torch.int64), length=length, truncated=cut)
    lengths = {"length_mean": 1.5, "length_min": 1, "length_max": 2, "length_finished": 2}
    want = {f"response/{name}": x for name, x in (lengths | {"truncated": 0.5}).items()}
    assert response_metrics(rows) == pytest.approx(want)


def test_where_every_answer_was_cut_off_none_has_a_finished_length():
    cut = torch.ones(2, dtype=torch.bool)
    rows = rollout(TAKEN, torch.zeros(2, dtype=torch.int64), truncated=cut)
    assert "response/length_finished" not in response_metrics(rows)


def test_a_sample_is_as_old_as_its_oldest_step():
    gap = torch.tensor([[1, 3, 9], [0, 9, 9]])
    rows = rollout(TAKEN, torch.zeros(2, dtype=torch.int64), version_gap=gap)
    ages = {"share_0": 1 / 3, "share_1": 1 / 3, "share_3": 1 / 3}
    want = {f"staleness/{k}": x for k, x in ({"gap_mean": 1.5, "gap_max": 3} | ages).items()}
    assert staleness_metrics(rows) == pytest.approx(want)
