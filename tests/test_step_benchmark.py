"""Benchmarks of a training step: their programs run and do the same work."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS, SOURCES = (Path(__file__).parents[1] / name for name in ("benchmarks", "src"))
pytestmark = pytest.mark.slow
CELL = "0.3M ragged half 16"


def test_one_cell_of_the_grid_is_measured_and_the_bare_steps_do_its_work(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    script = (
        "import json, sys; from pathlib import Path; import language_step as b\n"
        "if __name__ == '__main__':\n"
        "    folder = Path(sys.argv[1])\n"
        f"    found = b.measure(b.workload({CELL!r}, folder, 2), folder)\n"
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


def test_a_pipeline_is_sampled_and_trained_as_beside_flow_factory(tmp_path):
    script = (
        "import json, sys; from pathlib import Path\n"
        "import flow_pipeline, step_pictures; from turns import Runner\n"
        "if __name__ == '__main__':\n"
        "    folder = Path(sys.argv[1])\n"
        "    flow_pipeline.prepare(folder)\n"
        "    options = flow_pipeline.overrides(folder, guidance=4.5, iterations=2)\n"
        "    runner = Runner(step_pictures.steps, folder, options)\n"
        "    runner.turn(); runner.turn(); runner.close()\n"
        "    (folder / 'rows.json').write_text(json.dumps(runner.laps[-1].rows))\n"
    )
    (tmp_path / "one.py").write_text(script)
    subprocess.run(
        [sys.executable, tmp_path / "one.py", tmp_path],
        check=True,
        cwd=BENCHMARKS,
        env={"PYTHONPATH": f"{BENCHMARKS}:{SOURCES}", "PATH": "/usr/bin:/bin"},
    )
    guided = {"rows without gradient": 2 * 16 * 6, "rows with gradient": 2 * 16 * 2}
    passes = {"passes without gradient": 6, "passes with gradient": 2}
    assert json.loads((tmp_path / "rows.json").read_text()) == guided | passes | {"decoded": 16}


def test_without_a_checkout_of_flow_factory_what_was_saved_stays(monkeypatch, capsys):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import flow_pipeline

    saved = flow_pipeline.KEPT.read_bytes()
    said = flow_pipeline.sections(None, Path(sys.executable), rounds=None, save=True)
    assert "no --flow-factory DIR is given" in capsys.readouterr().out
    assert flow_pipeline.KEPT.read_bytes() == saved and "Flow-Factory" in said[0]
