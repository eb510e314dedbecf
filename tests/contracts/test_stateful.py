"""Plain attributes of parts with state: one that changes in a call is refused, whatever it is."""

import random
import threading

import numpy as np
import pytest
import torch

from tandem.contracts.stateful import StatefulComponent
from tandem.contracts.wrong_output import WrongOutput


class Tally:
    def __init__(self):
        self.calls = 0


class Keeping(StatefulComponent):
    def __init__(self, kept, change):
        super().__init__()
        self.kept, self.change = kept, change

    def forward(self):
        self.change(self)


def add(calls):
    calls[1000] += 1


CHANGED = {
    "dice": (random.Random(0), lambda part: part.kept.random()),
    "numpy": (np.random.default_rng(0), lambda part: part.kept.random()),
    "generator": (torch.Generator(), lambda part: torch.rand(1, generator=part.kept)),
    "in a dict": ({"calls": torch.zeros(2001)}, lambda part: add(part.kept["calls"])),
    "in a list": ([np.zeros(2001)], lambda part: add(part.kept[0])),
    "object": (Tally(), lambda part: setattr(part.kept, "calls", 1)),
    "list of what no pickle holds": ([threading.Lock()], lambda part: part.kept.append(0)),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_plain_attribute_that_changes_in_a_call_is_refused(name):
    part = Keeping(*CHANGED[name])
    with pytest.raises(WrongOutput, match=r"^Keeping\.kept at .* changes in a call"):
        part()


EQUAL = {
    "replaced by its equal": (
        {"x": torch.zeros(3), "y": [1.0, "x"]},
        lambda part: setattr(part, "kept", {"x": torch.zeros(3), "y": [1.0, "".join(["x"])]}),
    ),
    "a set in another order": (
        {*range(0, 64, 8)},
        lambda part: setattr(part, "kept", {*range(56, -8, -8)}),
    ),
    "read": (random.Random(0), lambda part: part.kept.getstate()),
    "a cycle": ((cycle := [0], cycle.append(cycle))[0], lambda part: len(part.kept)),
    "a function": (lambda x: x, lambda part: part.kept(1)),
    "a cache that the call adds": (0, lambda part: setattr(part, "cache", 1)),
}


@pytest.mark.parametrize("name", EQUAL)
def test_a_plain_attribute_that_stays_equal_is_accepted(name):
    part = Keeping(*EQUAL[name])
    part()
    assert name != "a cache that the call adds" or part.cache == 1
