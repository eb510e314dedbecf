"""Every reference value of flows is read by a test, or is listed among those that are not yet."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
VECTORS = HERE.parent / "vectors"


@pytest.mark.system
def test_every_flow_value_is_read_or_has_a_reason(tmp_path):
    file = tmp_path / "read.json"
    quiet = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not system"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(HERE), *quiet],
        env=os.environ | {"FLOW_VALUES_READ": str(file)},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    cases = json.loads((VECTORS / "flow.json").read_text())
    known = {f"{case}/{field}" for case, fields in cases.items() for field in fields}
    unread = known - set(json.loads(file.read_text()))
    excused = tomllib.loads((VECTORS / "flow_unused.toml").read_text())
    assert all(excused.values())
    # A name without a field excuses a whole case, of which nothing may be read.
    covered = set()
    for name in excused:
        own = {value for value in known if value == name or value.rsplit("/", 1)[0] == name}
        assert own and own <= unread, f"{name} is read, or is no reference value"
        covered |= own
    assert sorted(unread - covered) == []
