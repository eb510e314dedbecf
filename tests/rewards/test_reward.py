"""A reward is a number or missing; every fault is counted and costs no other score."""

import asyncio
import importlib
import math
import os
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tandem.rewards import Reward, Rewards, batched
from tandem.rewards.worker import verdict
from tandem.stop import Stop, command_to_resume
from tandem.types import Prompt

PROMPTS = [Prompt(id=i, source="test", text="?", answer=str(i)) for i in range(64)]
OUTPUTS = [str(i) for i in range(64)]


def numbers(function, count=4, **options):
    values, faults = Reward(function, **options)(OUTPUTS[:count], PROMPTS[:count])
    return values, dict(faults)


def says(value):
    return lambda output, prompt: value


def test_worked_example_of_a_weighted_sum():
    length, judge = (lambda o, p: 2.0), (lambda o, p: None if p.id == 1 else float(p.id))
    rewards = Rewards({"judge": Reward(judge, weight=10.0), "length": Reward(length, weight=-0.5)})
    scores = rewards(OUTPUTS[:3], PROMPTS[:3])
    assert_close(scores.total, torch.tensor([-1.0, -1.0, 19.0]))
    assert_close(scores.parts["judge"], torch.tensor([0.0, math.nan, 2.0]), equal_nan=True)
    assert_close(scores.parts["length"], torch.tensor([2.0, 2.0, 2.0]))
    assert scores.scored.tolist() == [True, True, True]


@pytest.mark.parametrize("timeout", [None, 9.0])  # in this thread, or in one of its own
def test_what_a_reward_sets_in_torch_ends_with_its_call(timeout):
    def careless(output, prompt):
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        return 1.0

    try:
        assert Rewards({"a": Reward(careless, timeout=timeout)})(OUTPUTS[:1], PROMPTS[:1]).scored
        assert torch.get_default_dtype() is torch.float32
        assert torch.is_grad_enabled()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)


@pytest.mark.parametrize("timeout", [None, 9.0])
def test_a_reward_that_deletes_the_directory_it_works_in_costs_its_own_number(
    tmp_path, monkeypatch, timeout
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")  # where a shell would find `python`

    def careless(output, prompt):
        with TemporaryDirectory() as folder:
            os.chdir(folder)
        assert sys.executable in command_to_resume(tmp_path)
        raise ValueError("no")

    rewards = Rewards({"a": Reward(careless, timeout=timeout)})
    assert not rewards(OUTPUTS[:1], PROMPTS[:1]).scored
    (reason,) = rewards.pop_faults()
    assert f"a: raised ValueError: 'no' at {__file__}:" in reason
    assert os.getcwd() == str(tmp_path)


def test_a_sample_that_no_reward_scored_is_not_scored():
    rewards = Rewards({"a": Reward(says(None)), "b": Reward(lambda o, p: p.id or None)})
    scores = rewards(OUTPUTS[:3], PROMPTS[:3])
    assert scores.scored.tolist() == [False, True, True]
    assert scores.total.tolist() == [0.0, 1.0, 2.0]


GOOD = [
    np.array(1.0),
    np.array([1.0]),
    True,
    1,
    1.0,
    np.float32(1),
    np.int64(1),
    np.True_,
    torch.tensor(1),
    torch.tensor([1.0]),
]


@pytest.mark.parametrize("value", GOOD, ids=repr)
def test_every_kind_of_number_is_a_number(value):
    assert numbers(says(value), count=1) == ([1.0], {})


BROKEN = {
    "none": (None, "gave none"),
    "nan": (math.nan, "not finite"),
    "inf": (math.inf, "not finite"),
    "minus inf": (-math.inf, "not finite"),
    "too large": (1e30, "over 1e18"),
    "huge": (10**400, "over 1e18"),
    "text": ("1.0", "gave str, not a number"),
    "list": ([1.0], "gave list, not a number"),
    "tensor": (torch.ones(2), "gave Tensor, not a number"),
    "complex": (1j, "gave complex, not a number"),
    "nan tensor": (torch.tensor(math.nan), "not finite"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_finite_number_is_missing_and_not_zero(name):
    value, reason = BROKEN[name]
    values, faults = numbers(says(value), count=2)
    assert values == [None, None]
    [(said, count)] = faults.items()
    assert reason in said
    assert count == 2


def fails_on_one(output, prompt, *, how):
    if prompt.id == 1:
        how()
    return 1.0


def divide():
    return 1 / 0


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (divide, "raised ZeroDivisionError: 'division by zero'"),
        (lambda: sys.exit(0), "raised SystemExit: '0'"),
        (lambda: {}["x"], "raised KeyError: \"'x'\""),
        (lambda: [].append.no, "raised AttributeError"),
        (partial(float, "x"), "raised ValueError"),
    ],
)
@pytest.mark.parametrize("timeout", [None, 5.0])
def test_an_exception_costs_its_own_sample_only(how, reason, timeout):
    values, faults = numbers(partial(fails_on_one, how=how), timeout=timeout)
    assert values == [1.0, None, 1.0, 1.0]
    [said] = faults
    assert said.startswith(reason)


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_an_interrupt_from_the_keyboard_is_no_fault_of_a_reward(timeout):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupted(output, prompt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        return 1.0

    try:
        with pytest.raises(KeyboardInterrupt):
            numbers(interrupted, count=1, timeout=timeout)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_fault_names_the_line_of_the_user_s_code_that_called_a_library(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(
        "import json\n\ndef score(output, prompt):\n    return json.loads('{')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("own")
    _, faults = numbers(module.score)
    [said] = faults
    assert said.startswith("raised JSONDecodeError: 'Expecting property name")
    assert said.endswith(f" at {tmp_path}/own.py:4")


def test_a_package_outside_of_the_environment_is_a_library_too(tmp_path, monkeypatch):
    """As with packages of another prefix: the reported line is the user's, not the library's."""
    packages = tmp_path / "lib" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "wraps_sys_exit.py").write_text("import sys\n\ndef leave():\n    sys.exit(0)\n")
    (tmp_path / "leaves_by_a_library.py").write_text(
        "import wraps_sys_exit\n\ndef score(output, prompt):\n    wraps_sys_exit.leave()\n"
    )
    for folder in (packages, tmp_path):
        monkeypatch.syspath_prepend(folder)
    _, faults = numbers(importlib.import_module("leaves_by_a_library").score)
    [said] = faults
    assert said == f"raised SystemExit: '0' at {tmp_path}/leaves_by_a_library.py:4"


def test_a_child_that_a_reward_forks_may_leave_as_it_likes():
    def forks(output, prompt):
        if (child := os.fork()) == 0:
            os._exit(3)
        return float(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    assert numbers(forks) == ([3.0] * 4, {})


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_a_reward_that_is_written_async_is_waited_for(timeout):
    async def alone(output, prompt):
        await asyncio.sleep(0)
        return float(output)

    async def together(outputs, prompts):
        return [float(output) for output in outputs]

    assert numbers(alone, timeout=timeout) == ([0.0, 1.0, 2.0, 3.0], {})
    assert numbers(batched(together), timeout=timeout) == ([0.0, 1.0, 2.0, 3.0], {})


@pytest.mark.parametrize("back", ["returns", "raises"])
def test_a_child_that_comes_back_from_a_reward_is_no_second_trainer(back):
    def forks(output, prompt):
        if (child := os.fork()) == 0:
            if back == "raises":
                raise ValueError
            return 5.0
        return float(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    assert numbers(forks) == ([0.0] * 4, {})


class Leaving(Exception):
    def __str__(self):
        os._exit(0)


def test_an_error_whose_text_leaves_the_process_is_a_fault_as_any_other():
    def fails(output, prompt):
        raise Leaving

    values, faults = numbers(fails)
    [said] = faults
    assert values == [None] * 4
    assert said.startswith("raised Leaving: its text raises SystemExit at ")


def test_one_that_hangs_at_every_call_is_not_asked_a_fourth_time():
    values, faults = numbers(lambda output, prompt: threading.Event().wait(), count=64, timeout=0.1)
    assert values == [None] * 64
    assert faults == {"timed out": 3, "skipped: 3 calls in a row timed out": 61}


def test_a_time_limit_by_signals_says_how_it_can_be_had():
    def limited(output, prompt):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    _, faults = numbers(limited, timeout=5.0)
    [said] = faults
    assert "; reward.*.timeout=null calls it in the main thread" in said


def test_gradients_are_off_in_the_thread_of_a_reward_where_they_are_off_here():
    with torch.no_grad():
        assert numbers(lambda output, prompt: torch.is_grad_enabled(), timeout=5.0)[0] == [0.0] * 4


def hangs_on_one(output, prompt):
    if prompt.id == 17:
        threading.Event().wait()
    return 1.0


def check_hang():
    values, faults = numbers(hangs_on_one, count=64, timeout=0.5)
    assert values == [1.0] * 17 + [None] + [1.0] * 46
    assert faults == {"timed out": 1}


def test_one_hanging_call_of_64_costs_its_timeout_and_no_other_score():
    check_hang()


def test_the_same_holds_in_a_thread_that_is_not_the_main_one():
    failed = []

    def run():
        try:
            check_hang()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not failed


def test_faults_are_counted_by_reason_until_they_are_read():
    rewards = Rewards({"a": Reward(says(None)), "b": Reward(partial(fails_on_one, how=divide))})
    rewards(OUTPUTS[:3], PROMPTS[:3])
    rewards(OUTPUTS[:3], PROMPTS[:3])
    faults = {reason.partition(" at ")[0]: count for reason, count in rewards.pop_faults().items()}
    assert faults == {"a: gave none": 6, "b: raised ZeroDivisionError: 'division by zero'": 2}
    assert rewards.pop_faults() == {}


def test_a_bound_on_the_record_holds_in_float32():
    scores = Rewards({"a": Reward(says(1e18), weight=1.0)})(OUTPUTS[:2], PROMPTS[:2])
    assert scores.total.dtype == torch.float32
    assert (scores.total**2).isfinite().all()


def test_no_samples_have_no_scores():
    assert Rewards({"a": Reward(says(1.0))})([], []).total.shape == (0,)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weight": math.inf}, "weight"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"range": (1.0, 1.0)}, r"range=\[1.0, 1.0\]"),
        ({"range": (1.0, 0.0)}, "range"),
        ({"range": (0.0, math.inf)}, "range"),
        ({"range": (math.nan, 1.0)}, "range"),
    ],
)
def test_numbers_that_make_no_reward_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        Reward(says(1.0), **options)


def test_a_range_becomes_minus_one_to_one():
    values, faults = numbers(lambda o, p: 2.0 * p.id, count=4, range=(0.0, 6.0))
    assert values == pytest.approx([-1.0, -1 / 3, 1 / 3, 1.0])
    assert faults == {}


def test_a_number_outside_its_range_is_missing_and_the_key_is_named():
    graded = Reward(lambda o, p: p.id - 1.0, range=(0.0, 1.0), weight=3.0)
    rewards = Rewards({"graded": graded, "fine": Reward(says(1.0))})
    scores = rewards(OUTPUTS[:4], PROMPTS[:4])
    assert scores.scored.tolist() == [False, True, True, False]
    assert scores.total.tolist() == [0.0, -2.0, 4.0, 0.0]
    assert rewards.pop_faults() == {
        "graded: gave a number outside 0 to 1, which is reward.graded.range": 2
    }


def test_a_range_leaves_what_is_missing_as_it_is():
    assert numbers(says(None), range=(0.0, 1.0)) == ([None] * 4, {"gave none": 4})


def test_a_run_needs_a_reward():
    with pytest.raises(ValueError, match="reward=exact_match"):
        Rewards({})


def test_a_failing_part_leaves_the_sample_without_a_score_and_an_abstaining_one_does_not():
    fine, silent = Reward(lambda o, p: 1.0), Reward(lambda o, p: None)
    broken = Reward(partial(fails_on_one, how=divide))
    both = Rewards({"fine": fine, "broken": broken, "silent": silent})
    scores = both(["x"] * 3, [Prompt(id=i, source="s", text="?") for i in range(3)])
    assert scores.scored.tolist() == [True, False, True]
    assert scores.total[1] == 0
    assert scores.parts["fine"].tolist() == [1.0] * 3


def test_a_reward_is_asked_about_the_prompts_that_name_it_and_of_others_is_no_fault():
    asked = []

    @batched
    def whole(outputs, prompts):
        asked.extend(outputs)
        return [2.0] * len(outputs)

    rewards = Rewards({"whole": Reward(whole, weight=3.0), "silent": Reward(says(None))})
    own = {"all": None, "whole": ("whole",), "silent": ("silent",)}
    prompts = [Prompt(id=i, source=s, text="?", rewards=r) for i, (s, r) in enumerate(own.items())]
    scores = rewards(["a", "b", "c"], prompts)
    assert asked == ["a", "b"]
    assert scores.total.tolist() == [6.0, 6.0, 0.0]
    assert scores.scored.tolist() == [True, True, False]
    assert scores.parts["whole"][:2].tolist() == [2.0, 2.0] and scores.parts["whole"][2].isnan()
    assert rewards.pop_faults() == {"silent: gave none": 2}
    alone = rewards(["c"], [replace(prompts[1], id=9)])
    assert (alone.scored.tolist(), rewards.pop_faults()) == ([True], {})


def test_an_error_whose_text_raises_is_a_verdict_of_a_worker_too():
    class Silent(ValueError):
        def __str__(self):
            raise RuntimeError

    def judge(request):
        raise Silent

    assert verdict(judge, {}) == {"fault": "Silent: (its text raises RuntimeError)"}
    assert "fault" in verdict(lambda request: "no number", {})


@pytest.mark.parametrize("wrap", [lambda function: function, batched])
def test_a_reward_may_write_on_the_messages_that_it_is_given(wrap):
    def appends(outputs, prompts):
        for prompt in [prompts] if isinstance(prompts, Prompt) else prompts:
            prompt.messages[0]["content"] += "!"
        return [0.0] * len(outputs) if isinstance(outputs, list) else 0.0

    chat = Prompt(id=0, source="t", messages=({"role": "user", "content": "?"},))
    assert Reward(wrap(appends))(["a", "b"], [chat, chat]) == ([0.0, 0.0], Counter())
    assert chat.messages[0]["content"] == "?"


@pytest.mark.parametrize("wrap", [lambda function: function, batched])
def test_nobody_sees_what_a_reward_writes_into_fields_that_were_empty(wrap):
    def counts(output, prompt):
        prompt.fields["asked"] = prompt.fields.get("asked", 0) + 1
        return float(prompt.fields["asked"])

    def counts_all(outputs, prompts):
        return [counts(*pair) for pair in zip(outputs, prompts, strict=True)]

    asked = Prompt(id=0, source="t", text="?")
    function = wrap(counts if wrap is not batched else counts_all)
    for _ in range(2):
        assert Reward(function)(["a", "b"], [asked, asked])[0] == [1.0, 1.0]
    assert asked.fields == {}


def test_a_prompt_that_cannot_be_copied_ends_the_run_in_one_line():
    asked = Prompt(id=7, source="mine", text="?", fields={"rows": (x for x in ())})
    with pytest.raises(Stop, match="prompt 7 of mine holds in its fields what cannot be copied"):
        Reward(lambda output, prompt: 1.0)(["a"], [asked])


def test_a_fault_in_a_method_that_a_dataclass_wrote_is_placed_where_it_was_called():
    def writes(output, prompt):
        prompt.answer = "c"

    _, faults = Reward(writes)(["a"], [Prompt(id=0, source="t", text="?")])
    assert "test_reward.py:" in next(iter(faults))
