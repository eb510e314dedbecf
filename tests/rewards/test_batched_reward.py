"""Batched rewards: their inputs, their return values, and the cost of a wrong answer."""

import math
import threading
from functools import partial

import numpy as np
import pytest
import torch

from tandem.rewards import Reward, batched
from tandem.types import Prompt

PROMPTS = [Prompt(id=i, source="test", text="?") for i in range(32)]
OUTPUTS = [str(i) for i in range(32)]


def numbers(function, count=4, **options):
    values, faults = Reward(function, **options)(OUTPUTS[:count], PROMPTS[:count])
    return values, dict(faults)


def test_a_batched_reward_sees_lists_and_batch_size_cuts_them():
    seen = []

    @batched
    def judge(outputs, prompts):
        seen.append((len(outputs), [prompt.id for prompt in prompts]))
        return [float(output) for output in outputs]

    values, faults = numbers(judge, count=5, batch_size=2)
    assert (values, faults) == ([0.0, 1.0, 2.0, 3.0, 4.0], {})
    assert seen == [(2, [0, 1]), (2, [2, 3]), (1, [4])]


def test_a_bound_batched_function_stays_batched():
    @batched
    def judge(outputs, prompts, *, scale):
        return [scale * len(outputs)] * len(outputs)

    assert numbers(partial(judge, scale=2.0), count=3)[0] == [6.0, 6.0, 6.0]


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_a_batch_of_numbers_may_come_in_any_row(kind):
    @batched
    def judge(outputs, prompts):
        return kind([1.0, 2.0, 3.0])

    assert numbers(judge, count=3) == ([1.0, 2.0, 3.0], {})


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ([1.0, 2.0], "gave 2 numbers for 3 samples"),
        ([1.0] * 4, "gave 4 numbers for 3 samples"),
        (None, "gave NoneType, not a list"),
        (1.0, "gave float, not a list"),
        ("abc", "gave str, not a list"),
        ({1: 2.0, 3: 1.0}, "gave a number for 3, of 3 samples"),
        ({"a": 2.0}, "gave a number for a, of 3 samples"),
        (b"abc", "gave bytes, not a list"),
        (torch.tensor(1.0), "gave float, not a list"),
    ],
)
def test_a_batch_of_the_wrong_shape_is_missing_for_all_its_rows(answer, reason):
    @batched
    def judge(outputs, prompts):
        return answer if prompts[0].id == 0 else [1.0] * len(outputs)

    values, faults = numbers(judge, count=6, batch_size=3)
    assert values == [None] * 3 + [1.0] * 3
    [(said, count)] = faults.items()
    assert reason in said
    assert count == 3


def test_a_batch_may_say_which_place_a_number_is_for_and_then_no_order_is_wrong():
    @batched
    def judge(outputs, prompts):
        return {place: float(outputs[place]) for place in (2, 0, 3)}

    values, faults = numbers(judge, count=4)
    assert values == [0.0, None, 2.0, 3.0]
    assert faults == {"gave no number for it": 1}


def test_single_rows_of_a_batch_may_be_missing():
    @batched
    def judge(outputs, prompts):
        return [1.0, None, math.nan, ValueError("unreadable")]

    values, faults = numbers(judge, count=4)
    assert values == [1.0, None, None, None]
    assert set(faults) >= {"gave none", "raised ValueError: 'unreadable'"}


def test_a_hanging_batch_is_missing_and_the_next_one_is_not():
    @batched
    def judge(outputs, prompts):
        if prompts[0].id == 16:
            threading.Event().wait()
        return [1.0] * len(outputs)

    values, faults = numbers(judge, count=32, batch_size=16, timeout=0.2)
    assert values == [1.0] * 16 + [None] * 16
    assert faults == {"timed out": 16}
