"""Guidance: the line through two velocities, and an error if one is missing."""

import pytest
import torch
from torch.testing import assert_close

from tandem.dynamics.guidance import guide, needs_unprompted, rescale

WITH, WITHOUT = torch.tensor([[2.0, -1.0]]), torch.tensor([[1.0, 1.0]])


def test_worked_example():
    assert_close(guide(WITH, WITHOUT, scale=4.5), torch.tensor([[5.5, -8.0]]))


def test_a_scale_of_one_is_the_prompted_velocity_itself():
    assert not needs_unprompted(1.0) and needs_unprompted(1.01)
    assert guide(WITH, None, scale=1.0) is WITH
    assert_close(guide(WITH, WITHOUT, scale=1.0), WITH, rtol=0, atol=0)


def test_both_velocities_are_trained():
    both = [WITH.clone().requires_grad_(), WITHOUT.clone().requires_grad_()]
    gradients = torch.autograd.grad(guide(*both, scale=3.0).sum(), both)
    assert_close(gradients[0], torch.full((1, 2), 3.0))
    assert_close(gradients[1], torch.full((1, 2), -2.0))


def test_a_missing_negative_is_an_error():
    with pytest.raises(ValueError, match="encode a negative prompt, or set guidance_scale=1"):
        guide(WITH, None, scale=4.5)


def test_a_scale_below_one_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        guide(WITH, WITHOUT, scale=0.0)


def test_velocities_of_a_half_model_are_combined_in_float32():
    half = torch.randn(2, 1, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    want = guide(*half.float(), scale=7.5)
    assert_close(guide(*half, scale=7.5), want, rtol=0, atol=0)


def test_guidance_that_turns_a_velocity_leaves_its_length():
    prompted, way = torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([[0.0, 20.0], [-6.0, 8.0]])
    want = torch.tensor([[0.0, 5.0], [-1.2, 1.6]])
    assert_close(rescale(prompted, way), want)
    assert rescale(prompted.bfloat16(), way.bfloat16()).dtype == torch.float32
