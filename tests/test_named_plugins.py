"""Parts that a file beside a plugin names: schedules of the learning rate, callbacks."""

import pytest
from own_plugin import said_by

from tandem.config import ConfigError, check, compose

pytestmark = pytest.mark.usefixtures("unregistered")

SCHEDULES = """
import itertools

calls = itertools.count()

def ascending(iteration, iterations):
    return -1.0

def worded(iteration, iterations):
    return "half"

def by_epoch(epoch):
    return 1.0

def restless(iteration, iterations):
    return 1.0 / (1 + next(calls))

def late(iteration, iterations):
    return float("nan") if iteration == 1 else 1.0
"""
WRONG_SCHEDULES = {
    "ascending": "schedule=ascending returned -1.0; return a finite factor on optimizer.lr, 0 or",
    "worded": "schedule=worded returned a str; return a float, a factor on optimizer.lr",
    "by_epoch": "schedule=by_epoch: by_epoch() takes 1 positional argument but 2 were given",
    "restless": "schedule=restless returned 1 and then 0.5 for iteration 0; keep no state",
}


@pytest.mark.parametrize(("name", "fault"), WRONG_SCHEDULES.items())
def test_a_schedule_of_the_learning_rate_is_tried_before_anything_is_loaded(plugin, name, fault):
    node = f"_target_: wrong.{name}\n_partial_: true\n"
    words = plugin(SCHEDULES, **{f"schedule__{name}": node})
    with pytest.raises(ConfigError) as refused:
        check(compose([*words, f"schedule={name}"]))
    assert str(refused.value).startswith(fault)


def test_a_factor_of_a_later_iteration_that_is_none_ends_the_run(plugin):
    words = plugin(SCHEDULES, schedule__late="_target_: wrong.late\n_partial_: true\n")
    said = said_by(words, "schedule=late", "iterations=3")
    assert said.startswith("iteration 1: schedule=late returned nan; return a finite factor")
