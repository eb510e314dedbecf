"""The benchmark of a training step of tokens: its programs run, and do the same work."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
pytestmark = pytest.mark.slow
CELL = "0.3M ragged half 16"


def test_one_cell_of_the_grid_is_measured_and_the_bare_steps_do_its_work(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    script = (
        "import json, sys; from pathlib import Path; import language_step as b\n"
        "if __name__ == '__main__':\n"
        "    folder = Path(sys.argv[1])\n"
        f"    found = b.measured(b.workload({CELL!r}, folder, 2), folder)\n"
        "    (folder / 'found.json').write_text(json.dumps(found))\n"
    )
    (tmp_path / "one.py").write_text(script)
    subprocess.run(
        [sys.executable, tmp_path / "one.py", tmp_path],
        check=True,
        cwd=BENCHMARKS,
        env={"PYTHONPATH": str(BENCHMARKS), "PATH": "/usr/bin:/bin"},
    )
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["largest_weight_gap_to_bare"] < 1e-6
    assert found["programs"]["tandem"]["tokens"] == found["programs"]["bare"]["tokens"]
    assert 0 < found["programs"]["tandem"]["sampling_cpu_s"] < found["programs"]["tandem"]["cpu_s"]
    assert found["programs"]["bare"]["flops"] > 0
