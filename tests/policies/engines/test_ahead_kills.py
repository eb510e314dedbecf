"""Runs with rows in flight whose process or engines are killed: metrics equal those of an
uninterrupted run."""

import random
import time
from contextlib import ExitStack

import pytest
from kills import finish, history, log_path, wait_for
from loopback import Habits, Loopback, serving
from processes import start_training

QUICK = (
    "model=hf", "data=sort_letters", "rollout=vllm_server", "rollout.max_new_tokens=6",
    "rollout.max_prompt_tokens=20", "rollout.staleness=2", "rollout.engine.patience=80",
    "rollout.engine.timeout=20", "iterations=6", "prompts_per_step=4", "group_size=4",
    "num_minibatches=2", "evaluation.every=null", "guards.no_signal=9", "optimizer.lr=1e-2",
    "checkpoints.every=2", "algorithm.kl.coef=0", "reward=target_length", "warm_start=null",
    "reward.target_length.function.target=5",
)  # fmt: skip
WAYS = ("the run", "an engine", "an engine, started again", "an engine, which never answers")


def slow(path, said):
    if path.endswith(("/completions", "/generate")):
        time.sleep(0.02)


def run(folder, place, *, way=None, moment=0.0):
    """A run on two engines; `way` names what is killed at `moment`."""
    states = [Loopback(folder, Habits(spoil=slow)) for _ in range(2)]
    with ExitStack() as stack:
        urls = ",".join(stack.enter_context(serving(state)) for state in states)
        options = (*QUICK, f"model.path={folder}", f"cache_dir={place}")
        server = f"rollout.engine.url=[{urls}]"
        output = log_path(place / "run")
        process = start_training(*options, server, f"run_dir={place / 'run'}", output=output)
        wait_for(place / "run" / "metrics.jsonl", process)
        time.sleep(moment)
        habits = states[1].habits
        if way == "the run":
            process.kill()
            process.join()
            process = start_training(f"resume={place / 'run'}", server, output=output)
        elif way == "an engine":
            habits.spoil = lambda path, said: (503, b"")
        elif way == "an engine, started again":
            with states[1].lock:
                states[1].start()
        elif way == "an engine, which never answers":
            habits.spoil = lambda path, said: time.sleep(100)
        finish(process, place / "run")
    return history(place / "run")


@pytest.mark.system
@pytest.mark.slow
def test_whatever_is_killed_with_rows_in_flight_the_metrics_are_the_same(folder, tmp_path):
    """20 kills, 5 of each kind."""
    (tmp_path / "whole").mkdir()
    whole = run(folder, tmp_path / "whole")
    moments = random.Random(0)
    for number in range(20):
        place = tmp_path / str(number)
        place.mkdir()
        way = WAYS[number % len(WAYS)]
        found = run(folder, place, way=way, moment=moments.uniform(0, 1.5))
        assert found == whole, f"{number}: {way}"
