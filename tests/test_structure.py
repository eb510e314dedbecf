"""The amount of code in one file, and in one training step, must not grow."""

import ast
from pathlib import Path

import pytest

from benchmarks.structure import STEPS, count_entered, flags, nesting

# Files and functions of the package that the step of a run enters; lower them when possible.
MOST = {
    "one GRPO step (tiny_lm, 2 updates)": (32, 183),
    "one flow_grpo step (tiny_flow, 2 updates)": (41, 213),
}
GRPO, FLOW = STEPS
SRC = Path(__file__).parents[1] / "src"
LONGEST = 250  # lines of a file
# Names that users write: a decorator, two `_target_`s, and the mask of the trained steps.
PARTICIPLES = {"batched", "relaxed", "shifted", "trained"}
DEEPEST = 3  # blocks around a statement of a function; an `elif` counts as one inside its `if`


@pytest.fixture(scope="module")
def trees():
    return {path: ast.parse(path.read_text()) for path in SRC.rglob("*.py")}


def test_no_file_is_too_long_to_read_at_once():
    lengths = {
        str(path.relative_to(SRC)): len(path.read_text().splitlines()) for path in SRC.rglob("*.py")
    }
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def test_no_function_is_nested_too_deeply_to_follow(trees):
    deep = {
        f"{path.relative_to(SRC)}:{node.lineno} {node.name}": depth
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and (depth := nesting(node)) > DEEPEST
    }
    assert deep == {}


def test_no_function_is_named_by_a_participle(trees):
    found = {name for tree in trees.values() for name in flags(tree)}
    assert found == PARTICIPLES, "a verb for what acts, a noun for what is returned"


@pytest.mark.parametrize("title", [GRPO, pytest.param(FLOW, marks=pytest.mark.slow)])
def test_a_step_enters_no_more_files_and_functions_than_before(title):
    files, functions, _ = count_entered(STEPS[title])
    most_files, most_functions = MOST[title]
    assert 10 < files <= most_files, "fold the new file into the one that uses it, or raise MOST"
    assert 50 < functions <= most_functions, "fold helpers of one caller, or raise MOST"
