"""What a part writes on the tensors that it is given."""

import pytest
import torch

from tandem.contracts.inner_parts import ask_unwritten
from tandem.contracts.outputs import WrongOutput
from tandem.contracts.writes import Given, forget_comparison


class Scale:
    def keep(self, x):
        return x + 1

    def write(self, x):
        x.numpy()[:] = 0
        return x


class Writing:
    def __init__(self, x):
        x.numpy()[:] = 0


class Kept:
    def __init__(self, x):
        self.x = x


@pytest.mark.parametrize(
    ("first", "then"), [(Scale().keep, Scale().write), (Kept, Writing)], ids=["methods", "classes"]
)
def test_each_method_and_class_is_compared_at_its_own_first_call(first, then):
    ask_unwritten(first, torch.ones(2))
    with pytest.raises(WrongOutput, match="writes on an argument"):
        ask_unwritten(then, torch.ones(2))


def test_a_call_after_a_trial_is_compared_again():
    def write_late(x):
        if len(x) > 2:  # more than the numbers of a trial
            x.numpy()[:] = 0

    ask_unwritten(write_late, torch.ones(2))
    forget_comparison(write_late)
    with pytest.raises(WrongOutput, match="writes on an argument"):
        ask_unwritten(write_late, torch.ones(3))


def test_tensors_on_the_meta_device_are_judged_by_their_versions():
    def add(x):
        return x.add_(1)

    x = torch.ones(2, device="meta")
    given = Given(add, [x])
    assert given.fault() is None
    add(x)
    assert "writes on an argument" in given.fault()
