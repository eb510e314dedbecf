"""Every reference value is read by a test, or is listed among those that are not, with why."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.system
def test_every_reference_value_is_read_or_has_a_reason(tmp_path):
    file = tmp_path / "read.json"
    command = [sys.executable, "-m", "pytest", "-q", "-x", str(TESTS), f"--vectors-read={file}"]
    quiet = ["-p", "no:cacheprovider", "-m", "not slow and not system"]
    done = subprocess.run([*command, *quiet], cwd=TESTS.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    known = set(json.loads((TESTS / "vectors" / "llm.json").read_text()))
    excused = tomllib.loads((TESTS / "vectors" / "unused.toml").read_text())
    read = set(json.loads(file.read_text()))
    assert sorted(known - read) == sorted(excused)
    assert all(excused.values())
