"""Runs are read from their directories alone, including torn lines and dead runs."""

import json
import os
import subprocess
import sys
import time

import pytest
from written_runs import lock, write_run

from tandem.compare.__main__ import main
from tandem.processes import read_namespace
from tandem.record.reading.planned import list_unrecorded
from tandem.record.reading.provenance import code_of
from tandem.record.reading.runs import find, read
from tandem.record.writer import LOCK, claim_folder
from tandem.sweep import status


def test_every_axis_of_a_curve(tmp_path):
    run = read(write_run(tmp_path / "run", [0.1, 0.2, 0.4], every=5))
    assert run.curve("eval/accuracy").x.tolist() == [0, 5, 10]
    assert run.curve("eval/accuracy").y.tolist() == [0.1, 0.2, 0.4]
    for axis, last in {"samples": 640, "tokens": 6400, "seconds": 20, "cpu_seconds": 10}.items():
        assert run.curve("eval/accuracy", axis).x[-1] == last
    assert len(run.curve("reward/mean").x) == 11  # of every iteration
    assert len(run.curve("eval/accuracy", "gpu_seconds").x) == 0  # they were not measured


def test_a_run_that_died_has_the_score_it_had(tmp_path):
    dead = read(write_run(tmp_path / "dead", [0.1, 0.3], iterations=50))
    assert not dead.is_finished and dead.iterations == 1
    assert dead.score("eval/accuracy") == 0.3
    assert dead.score("eval/reward") is None
    assert read(write_run(tmp_path / "whole", [0.1, 0.3])).is_finished


def states(folder):
    """The state of the folder now, and an hour after its last line."""
    now = read(folder).state
    for file in folder.iterdir():
        os.utime(file, (time.time() - 3600,) * 2)
    return now, read(folder).state


def test_a_run_goes_on_as_long_as_its_lock_is_held_and_died_when_it_is_free(tmp_path):
    folder = write_run(tmp_path / "run", [0.1, 0.3], iterations=50, going=True)
    with status.lock_folder(folder):
        assert states(folder) == ("running", "running")
    assert read(folder).state == "died"


def test_a_process_that_the_sweep_saw_end_died_at_once(tmp_path):
    folder = write_run(tmp_path / "run", [0.1, 0.3], iterations=50, going=True)
    (folder / "job.json").write_text('{"code": -9}')
    assert states(folder) == ("died", "died")


def test_of_a_run_without_a_sweep_nobody_knows_once_it_is_quiet(tmp_path):
    folder = write_run(tmp_path / "run", [0.1, 0.3], iterations=50, going=True)
    assert states(folder) == ("running", "not finished")
    assert states(write_run(tmp_path / "whole", [0.1, 0.3])) == ("finished", "finished")


def test_a_run_of_this_machine_goes_on_exactly_as_long_as_its_process(tmp_path):
    folder = write_run(tmp_path / "run", [0.1, 0.3], iterations=50, going=True)
    lock(folder)
    assert states(folder) == ("running", "running")
    lock(folder, inode=1)  # a copy
    assert read(folder).state == "not finished"
    lock(folder, began="another boot 1")  # after kill -9
    (folder / "metrics.jsonl").touch()
    assert read(folder).state == "not finished"
    (folder / LOCK).unlink()  # after a signal or a guard
    assert read(folder).state == "not finished"


def test_a_run_of_another_container_is_as_unknown_as_one_of_another_machine(tmp_path):
    """Containers may share host name and boot id, but do not see each other's processes."""
    folder = write_run(tmp_path / "run", [0.1, 0.3], iterations=50, going=True)
    (folder / LOCK).unlink()
    with claim_folder(folder):
        assert json.loads((folder / LOCK).read_text())["namespace"] == read_namespace()
    lock(folder, began="another boot 1", namespace=read_namespace())
    assert read(folder).state == "not finished"
    lock(folder, began="another boot 1", namespace="pid:[1]")
    assert states(folder) == ("running", "not finished")
    lock(folder, namespace="pid:[1]")  # our process by chance
    assert read(folder).state == "not finished"


def test_a_run_of_a_sweep_that_is_resumed_by_hand_goes_on(tmp_path):
    """`train resume=` neither locks nor changes what the sweep left."""
    folder = write_run(tmp_path / "run", [0.1, 0.3], iterations=50)
    (folder / "job.json").write_text('{"code": 75}')
    lock(folder)
    assert read(folder).state == "running"
    lock(folder, began="another boot 1")
    assert read(folder).state == "died"


def test_to_look_at_a_run_writes_nothing(tmp_path):
    folder = write_run(tmp_path / "run", [0.1, 0.3], iterations=50)
    before = {path: path.stat().st_mtime_ns for path in (folder, *folder.iterdir())}
    folder.chmod(0o555)
    assert read(folder).state == "died"
    assert {path: path.stat().st_mtime_ns for path in (folder, *folder.iterdir())} == before


def test_a_torn_line_is_left_out_and_null_is_no_number(tmp_path):
    folder = write_run(tmp_path / "run", [0.1, 0.3])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"iteration": 2, "eval/accuracy": None}) + "\n")
        file.write('{"iteration": 3, "eval/acc')
    assert read(folder).curve("eval/accuracy").y.tolist() == [0.1, 0.3]
    assert read(folder).score("eval/accuracy") == 0.3


def test_where_a_run_comes_from_names_the_code_of_every_start(tmp_path):
    """It was resumed with other code, or with uncommitted files."""
    folder = write_run(tmp_path / "run", [0.1, 0.3])
    codes = [("a" * 40, False), ("b" * 40, True), ("a" * 40, True), (None, None)]
    starts = [{"code": {"commit": commit, "dirty": dirty}} for commit, dirty in codes]
    (folder / "manifest.json").write_text(json.dumps({"starts": starts}))
    said = ", ".join(["aaaaaaaaaa", "aaaaaaaaaa+changes", "bbbbbbbbbb+changes", "unknown code"])
    assert code_of([read(folder)]).endswith(f" {said}")


def test_a_run_that_a_sweep_planned_and_that_left_no_record_is_missed(tmp_path, capsys):
    """One crashed before its record began, one never started; all others are present."""
    sweep = tmp_path / "sweep"
    jobs = {f"seed={seed}": [f"seed={seed}"] for seed in range(4)}
    for seed in (0, 1):
        write_run(sweep / f"seed={seed}", [0.0, 0.5 + seed / 10], seed=seed)
    status.write_plan(sweep, "train.py -m seed=0,1", {name: jobs[name] for name in list(jobs)[:2]})
    assert list_unrecorded([sweep]) == []
    (sweep / "seed=2").mkdir()
    status.write_plan(sweep, "train.py -m seed=0,1,2,3", jobs)
    said = "sweep planned 4 runs; 2 have no record: seed=2, seed=3"
    assert list_unrecorded([tmp_path, sweep]) == [said]
    main([str(sweep), f"out={tmp_path / 'out'}"])
    assert said in capsys.readouterr().out
    of_page = json.dumps(f"n = 2 seeds each · {said}").strip('"')
    assert of_page in (tmp_path / "out" / "report.html").read_text()


def test_runs_are_found_below_a_folder_once(tmp_path):
    for name in ("sweep/b", "sweep/a"):
        write_run(tmp_path / name, [0.0, 1.0])
    found = find([tmp_path / "sweep", tmp_path / "sweep" / "a"])
    assert [folder.name for folder in found] == ["a", "b"]
    with pytest.raises(ValueError, match="there is no run in it"):
        find([tmp_path / "nowhere"])


def test_what_is_no_run_is_one_line(tmp_path):
    folder = write_run(tmp_path / "run", [0.0, 1.0])
    (folder / "manifest.json").write_text("{")
    for broken in ("{", "{}", "[]", '{"starts": 3}'):
        (folder / "manifest.json").write_text(broken)
        with pytest.raises(ValueError, match="cannot be read as a run") as error:
            read(folder)
        assert "\n" not in str(error.value)


def test_a_line_that_is_none_names_its_file(tmp_path):
    folder = write_run(tmp_path / "run", [0.0, 1.0])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 2, "eval/accuracy": 1}{}\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl has a line that is not a JSON object"):
        read(folder).score("eval/accuracy")


def test_a_configuration_runs_no_code(tmp_path):
    folder = write_run(tmp_path / "run", [0.0, 1.0])
    canary = tmp_path / "canary"
    (folder / "config.yaml").write_text(f"!!python/object/apply:os.mkdir ['{canary}']")
    with pytest.raises(ValueError, match="cannot be read as a run"):
        read(folder)
    assert not canary.exists()


def test_tables_load_neither_torch_nor_distributions_nor_plots():
    """Each import takes a third of a second or more, and reading twenty long runs takes one
    second."""
    ask = "import sys, tandem.compare.__main__; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert not {"torch", "scipy.stats", "matplotlib", "lightning"} & {*done.stdout.split()}
