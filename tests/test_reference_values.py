"""The accounting of reference values that tests read: tests/reference_values.py."""

import json
import subprocess
import sys

import pytest
from reference_values import EXCUSES, VECTORS, complaints, names

KNOWN = ["grpo/mean", "grpo/std", "ode/s", "ode/eta"]


def test_a_value_is_read_or_excused_or_complained_of():
    assert list(complaints(KNOWN, KNOWN, {})) == []
    assert list(complaints(KNOWN, ["grpo/mean", "grpo/std"], {"ode": "no noise"})) == []
    assert list(complaints(KNOWN, KNOWN[1:], {})) == ["grpo/mean: no test reads it"]


def test_an_excuse_is_needed_has_a_reason_and_names_a_value():
    read, excuses = KNOWN[:3], {"ode": "no noise", "grpo/std": "", "gspo": "gone"}
    assert sorted(complaints(KNOWN, read, excuses)) == [
        "grpo/std: is excused, but read",
        "grpo/std: no reason stands beside it",
        "gspo: there is no such value",
        "ode/s: is excused, but read",
    ]


def test_a_case_has_a_name_for_each_field():
    assert names({"in/M": [1], "ode": {"s": 1, "eta": 2}}) == ["in/M", "ode/s", "ode/eta"]
    assert all(names(json.loads((VECTORS / file).read_text())) for file in EXCUSES)


PROJECT = {
    "pyproject.toml": """
        [tool.pytest.ini_options]
        testpaths = ["tests"]
        pythonpath = ["HERE"]
        addopts = "-m 'not slow'"
        markers = ["slow"]
    """,
    "tests/conftest.py": 'pytest_plugins = ["reference_values"]',
    "tests/test_one.py": """
from reference_values import READ
def test_one():
    READ.add(("flow.json", "ode/s"))
""",
    "tests/test_two.py": """
from reference_values import READ
def test_two():
    READ.add(("llm.json", "in/M"))
""",
    "tests/vectors/flow.json": '{"ode": {"s": 1, "eta": 2}}',
    "tests/vectors/llm.json": '{"in/M": 1}',
    "tests/vectors/axis.json": "{}",
    "tests/vectors/axis_unused.toml": "",
    "tests/vectors/unused.toml": "",
    "tests/vectors/flow_unused.toml": "",
}


@pytest.mark.slow
@pytest.mark.system
def test_a_session_of_two_processes_fails_over_a_value_that_neither_has_read(tmp_path):
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.replace("HERE", str(VECTORS.parent)))
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "2 passed" in done.stdout
    said = [line for line in done.stdout.splitlines() if line.startswith("flow_unused")]
    assert said == ["flow_unused.toml: ode/eta: no test reads it"]
