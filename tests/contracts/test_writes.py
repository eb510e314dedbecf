"""What a part writes on the tensors that it is given."""

import functools

import pytest
import torch

from tandem.contracts import register_policy_loss
from tandem.contracts.inner_parts import ask_unwritten, report_errors
from tandem.contracts.outputs import Given, forget_comparison
from tandem.contracts.wrong_output import WrongOutput
from tandem.losses import policy


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


@functools.wraps(policy.ppo)
def clear(x, **numbers):
    x.numpy()[:] = 0


def test_a_function_that_wraps_a_built_in_is_judged_by_its_own_code():
    line = clear.__code__.co_firstlineno
    with pytest.raises(WrongOutput, match=rf"at .*test_writes\.py:{line} writes on an argument"):
        ask_unwritten(clear, torch.ones(2))
    with (
        pytest.raises(WrongOutput, match=rf"at .*test_writes\.py:{line + 2} raises"),
        report_errors(clear),
    ):
        clear(None)


def test_a_wrapper_of_a_built_in_without_a_name_of_its_own_is_no_option():
    def double(function):
        return functools.wraps(function)(lambda batch, **numbers: 2 * function(batch, **numbers))

    with pytest.raises(ValueError, match=r"double.*only a function at the top of a module"):
        register_policy_loss("doubled")(double(policy.ppo))


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
