"""What stands in the line of a run."""

from types import SimpleNamespace

from toy_run import SETTINGS

from tandem.training.callbacks.progress import Progress

KNOWN = {"reward/mean": 0.5, "eval/reward": 0.25, "perf/pictures_per_second": 9.0}


def numbers(latest):
    module = SimpleNamespace(policy=SimpleNamespace(unit="pictures"))
    return Progress(SimpleNamespace(latest=latest), SETTINGS)._numbers(module)


def test_the_held_out_reward_stands_where_nothing_is_right_or_wrong():
    assert "held-out reward 0.250" in numbers(KNOWN)
    judged = numbers({**KNOWN, "eval/accuracy": 0.75})
    assert "accuracy 0.750" in judged
    assert "held-out" not in judged
