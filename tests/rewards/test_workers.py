"""Rewards in processes: verdicts of the real packages, and the cost of a hang, a crash or a lie."""

import importlib.util
import subprocess
import sys
import threading
import time

import pytest

from tandem.data.reasoning_gym import reasoning_gym
from tandem.rewards import Reward
from tandem.rewards import math_verify as math_module
from tandem.rewards import reasoning_gym as gym_module
from tandem.rewards.math_verify import MathVerify
from tandem.rewards.reasoning_gym import ReasoningGym, answer_of
from tandem.rewards.workers import Workers
from tandem.types import Prompt

pytestmark = pytest.mark.system


def needs_package(name):
    missing = importlib.util.find_spec(name) is None
    return pytest.mark.skipif(missing, reason=f"{name} is not installed")


@pytest.fixture(scope="module")
def mathematician():
    function = MathVerify(timeout=2.0, workers=2)
    yield Reward(function)
    function.workers.close()


def judge(reward, pairs):
    prompts = [Prompt(id=i, source="t", text="?", answer=a) for i, (_, a) in enumerate(pairs)]
    return reward([output for output, _ in pairs], prompts)


EQUAL = [
    (r"The answer is \boxed{72}", "72"),
    (r"so $\frac{2}{4}$", "1/2"),
    ("it is 0.5", r"\frac{1}{2}"),
    (r"\boxed{1+x^2}", "x^2+1"),
    (r"\boxed{\sqrt{18}}", r"3\sqrt{2}"),
    (r"\boxed{2,1}", r"\{1,2\}"),
    ("10000", "10,000"),
    (r"\boxed{5}", "x=5"),
]
DIFFERENT = [(r"\boxed{71}", "72"), ("no idea", "3"), ("", "3"), (r"\boxed{", "3")]


@needs_package("math_verify")
def test_equal_mathematics_is_one_and_anything_else_zero(mathematician):
    values, faults = judge(mathematician, EQUAL + DIFFERENT)
    assert values == [1.0] * len(EQUAL) + [0.0] * len(DIFFERENT)
    assert not faults


@needs_package("math_verify")
def test_a_hang_costs_its_timeout_and_its_own_score(mathematician):
    judge(mathematician, EQUAL)  # both processes are warm
    start = time.monotonic()
    values, faults = judge(mathematician, [*EQUAL, ("9**9**9**9", "3"), *EQUAL])
    assert time.monotonic() - start < 2.0 + 6  # and a process that is started again
    assert values == [1.0] * len(EQUAL) + [None] + [1.0] * len(EQUAL)
    assert faults == {"timed out": 1}


@needs_package("math_verify")
def test_it_judges_in_a_thread_that_is_not_the_main_one(mathematician):
    got = []
    thread = threading.Thread(target=lambda: got.append(judge(mathematician, EQUAL)[0]))
    thread.start()
    thread.join()
    assert got == [[1.0] * len(EQUAL)]


@needs_package("math_verify")
def test_without_an_answer_a_sample_is_missing(mathematician):
    assert judge(mathematician, [("3", None), ("3", "3")])[0] == [None, 1.0]


@needs_package("math_verify")
def test_a_judge_that_was_killed_is_missing_once_and_then_started_again():
    workers = Workers("math_verify", count=1, timeout=5.0)
    request = {"output": "3", "answer": "3"}
    assert workers([request]) == [1.0]
    workers.workers[0].process.kill()
    [fault] = workers([request])
    assert isinstance(fault, ChildProcessError)
    assert workers([request]) == [1.0]
    workers.close()


@needs_package("math_verify")
def test_processes_start_when_they_are_needed_and_end_when_told():
    workers = Workers("math_verify", count=3, timeout=5.0)
    assert [worker.process for worker in workers.workers] == [None] * 3
    workers([{"output": "3", "answer": "3"}])
    [process] = [worker.process for worker in workers.workers if worker.process is not None]
    workers.close()
    assert process.returncode is not None


TASKS = ("countdown", "polynomial_multiplication", "binary_matrix")


@needs_package("reasoning_gym")
def test_the_right_answers_of_a_task_score_one_tagged_or_bare():
    made = [reasoning_gym(task=task, size=2, held_out=0, seed=0) for task in TASKS]
    prompts = [prompt for data in made for prompt in data.train]
    function = ReasoningGym(timeout=20.0, workers=1)
    outputs = [f"I think.</think> <answer> {p.answer}</answer>" for p in prompts]
    assert Reward(function)([p.answer for p in prompts], prompts)[0] == [1.0] * len(prompts)
    assert Reward(function)(outputs, prompts)[0] == [1.0] * len(prompts)
    wrong = Reward(function)(["nonsense"] * len(prompts), prompts)[0]
    assert max(wrong) < 0.1
    other = [Prompt(id=0, source="t", text="?", answer="4")]
    assert Reward(function)(["4"], other)[0] == [None]
    function.workers.close()


@needs_package("reasoning_gym")
def test_an_answer_that_a_task_cannot_read_scores_0_and_costs_no_process():
    """The scorer of prime_factorization raises for all but products of whole numbers."""
    prompt = reasoning_gym(task="prime_factorization", size=1, held_out=0, seed=0).train[0]
    function = ReasoningGym(timeout=20.0, workers=1)
    assert Reward(function)([prompt.answer], [prompt])[0] == [1.0]
    first = function.workers.workers[0].process
    assert Reward(function)(["2*3", "2 x 3", "no idea"], [prompt] * 3) == ([0.0] * 3, {})
    assert function.workers.workers[0].process is first
    unknown = {"task": "prime_factorization", "size": 1, "seed": 0, "difficulty": {"oops": 1}}
    for _ in range(2):  # a fault of the entry, and none of its process
        [fault] = function.workers([{**unknown, "index": 0, "output": "2"}])
        assert "unexpected keyword argument 'oops'" in str(fault)
        assert function.workers.workers[0].process is first
    function.workers.close()


def test_the_last_tagged_answer_counts():
    assert answer_of("<answer>1</answer> no: <answer> 2\n</answer>!") == "2"
    assert answer_of(" 3 ") == "3"
    assert answer_of("<answer> open") == "<answer> open"


@pytest.mark.parametrize(
    ("module", "make", "extra"),
    [(math_module, MathVerify, "math"), (gym_module, ReasoningGym, "reasoning-gym")],
)
def test_a_missing_package_is_one_line_with_its_extra(monkeypatch, module, make, extra):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=rf'pip install -e "\.\[{extra}\]"'):
        make()


ENDS_EARLY = """
import time

from tandem.rewards.workers import Workers
from tandem.threads import thread_like_this


def ask(request):
    print("asked", flush=True)
    time.sleep(0.5)


workers = Workers("math_verify", count=1, timeout=5.0)
workers.workers[0].ask = ask
thread_like_this(workers, [{}] * 20)
time.sleep(0.2)
"""


def test_a_process_that_ends_asks_nothing_further():
    done = subprocess.run([sys.executable, "-c", ENDS_EARLY], capture_output=True, check=True)
    assert done.stdout.split() == [b"asked"]


def test_workers_need_time_and_hands():
    with pytest.raises(ValueError, match="must be positive"):
        Workers("math_verify", count=0, timeout=1.0)
