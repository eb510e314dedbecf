"""Model output is never executed: a corpus of attacks through every built-in reward."""

import ast
import importlib.util
import time
from pathlib import Path

import pytest

import tandem.rewards
from tandem.data.reasoning_gym import reasoning_gym
from tandem.rewards import Reward
from tandem.rewards.math_verify import MathVerify
from tandem.rewards.reasoning_gym import ReasoningGym
from tandem.rewards.text import exact_match, format, max_length, regex_answer, target_length
from tandem.types import Prompt

SOURCES = sorted(Path(tandem.rewards.__path__[0]).glob("*.py"))
PATTERNS = (
    r"-?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?",
    r"####\s*(.+)",
    r"\\boxed\{([^{}]*)\}",
)
THINKING = r"\s*<think>.*?</think>.*\S.*"


def attacks(canary):
    """Strings that create the file `canary` if anything evaluates them, and costly ones."""
    touch = f"__import__('pathlib').Path({str(canary)!r}).touch()"
    programs = [
        touch,
        f"__import__('os').system('touch {canary}')",
        f"open({str(canary)!r}, 'w')",
        f"eval({touch!r})",
        f"exec({touch!r})",
        f"[{touch} for _ in (1,)]",
        f"[x for x in [{touch}]]",
        f"(lambda: {touch})()",
        f"getattr(__builtins__, 'open')({str(canary)!r}, 'w')",
        f"().__class__.__base__.__subclasses__()[0]; {touch}",
        f"S({touch!r})",
        f"N({touch!r})",
        f"sin({touch!r})",
        f"Symbol('x') + sympify({touch!r})",
        f"Integral({touch!r}, x)",
        f"sympy.parse_expr({touch!r})",
        f"f'{{{touch}}}'",
        f"3 if {touch} else 4",
        f"x = {touch}",
        f"import os; os.system('touch {canary}')",
        f"'a'.join([str({touch})])",
        f"{{'a': {touch}}}",
        f"!!python/object/apply:os.system ['touch {canary}']",
        f"$(touch {canary})",
        f"`touch {canary}`",
        f"; touch {canary} #",
        f"${{oc.env:HOME}} {touch}",
        f"\\input{{|touch {canary}}}",
        f"\\immediate\\write18{{touch {canary}}}",
    ]
    wrapped = [
        shape % text for text in programs for shape in (r"\boxed{%s}", "<answer>%s</answer>")
    ]
    return programs + wrapped + EXPENSIVE


EXPENSIVE = [
    "9**9**9",
    "9^9^9^9",
    r"\boxed{9^{9^{9^9}}}",
    "10**10**10",
    "1e999999999",
    "1/1e-999999999",
    "factorial(10**9)",
    "7" * 100_000,
    "-" * 10_000 + "1",
    "(" * 10_000,
    "[" * 10_000 + "]" * 10_000,
    "1+" * 10_000 + "1",
    r"\frac{" * 1000,
    r"\sqrt{" * 1000 + "2" + "}" * 1000,
    r"\boxed{" * 1000,
    "####" * 10_000,
    "#### " + " " * 50_000,
    "<think>" * 10_000,
    "<think>" + "</think>" * 10_000,
    "<answer>" * 10_000,
    "1," * 50_000,
    "1.1." * 25_000,
    "[0]*10**10",
    "'a'*10**10",
    "\x00",
    "1\x002",
    "\ud800",
    "\u202e12\u202c",
    "é" * 1000 + "\U0001f4a5",
    "١٢٣",
    "½",
    "∞",
    "nan",
    "inf",
    "None",
    "",
    " \n\t",
]


def test_the_corpus_has_a_hundred_strings(tmp_path):
    assert len(set(attacks(tmp_path / "canary"))) >= 100


def test_the_canary_sings_when_text_is_evaluated(tmp_path):
    eval(attacks(tmp_path / "canary")[0])
    assert (tmp_path / "canary").exists()


TEXT = {
    "exact_match": (exact_match, [{}]),
    "regex_answer": (regex_answer, [{"pattern": pattern} for pattern in PATTERNS]),
    "format": (format, [{"pattern": THINKING}]),
    "max_length": (max_length, [{"limit": 100}]),
    "target_length": (target_length, [{"target": 100}]),
}


@pytest.mark.parametrize("name", TEXT)
def test_text_rewards_run_nothing_and_take_no_time(name, tmp_path):
    function, settings = TEXT[name]
    start = time.process_time()
    for text in attacks(tmp_path / "canary"):
        for setting in settings:
            for answer in ("3", text):
                given = function(text, Prompt(id=0, source="t", text="?", answer=answer), **setting)
                assert -1 <= given <= 1
    assert time.process_time() - start < 5
    assert not (tmp_path / "canary").exists()


def check_harmless(function, prompt, canary, limit):
    """No canary, no crash of the reward, and no more time than slow ones may take."""
    texts = attacks(canary)
    start = time.monotonic()
    values, faults = Reward(function)(texts, [prompt] * len(texts))
    spent = time.monotonic() - start
    function.workers.close()
    assert not canary.exists()
    slow = faults.get("timed out", 0)
    assert spent < limit + slow * 8  # the timeout of a second, and a new process each
    assert all(value is None or value < 1 for value in values)
    return values, faults


def needs_package(name):
    missing = importlib.util.find_spec(name) is None
    return pytest.mark.skipif(missing, reason=f"{name} is not installed")


@needs_package("math_verify")
@pytest.mark.system
def test_math_verify_runs_nothing(tmp_path):
    prompt = Prompt(id=0, source="t", text="?", answer="31415")
    check_harmless(MathVerify(timeout=1.0, workers=2), prompt, tmp_path / "canary", limit=60)


# Their scorers pass the answer to Python's eval or to sympy's parser.
EVALUATING = (
    "binary_matrix",
    "countdown",
    "intermediate_integration",
    "n_queens",
    "polynomial_multiplication",
    "spiral_matrix",
)


@needs_package("reasoning_gym")
@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("task", EVALUATING)
def test_tasks_that_evaluate_answers_run_nothing(task, tmp_path):
    prompt = reasoning_gym(task=task, size=1, held_out=0, seed=0).train[0]
    function = ReasoningGym(timeout=1.0, workers=2)
    check_harmless(function, prompt, tmp_path / "canary", limit=60)


@needs_package("reasoning_gym")
@pytest.mark.system
def test_a_task_that_evaluates_answers_runs_no_program(tmp_path):
    canary = tmp_path / "canary"
    prompt = reasoning_gym(task="binary_matrix", size=1, held_out=0, seed=0).train[0]
    programs = attacks(canary)[:29]
    function = ReasoningGym(timeout=10.0, workers=1)
    values, faults = Reward(function)(programs, [prompt] * len(programs))
    function.workers.close()
    assert not canary.exists()
    assert (values, dict(faults)) == ([0.0] * len(programs), {})


EVALUATORS = {"eval", "exec", "compile", "__import__"}
PARSERS = {"sympify", "parse_expr", "literal_eval"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_reward_of_ours_evaluates_text(path):
    called = [node.func for node in ast.walk(ast.parse(path.read_text())) if is_call(node)]
    names = {function.id for function in called if isinstance(function, ast.Name)}
    methods = {function.attr for function in called if isinstance(function, ast.Attribute)}
    assert not names & (EVALUATORS | PARSERS)
    assert not methods & PARSERS


def is_call(node):
    return isinstance(node, ast.Call)
