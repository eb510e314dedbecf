"""The sweep of a command line: its values, the places of its runs, and their reported ends."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from compare.written_runs import write_run, write_sweep
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from omegaconf import OmegaConf

from tandem.compare.comparison import Request, compare
from tandem.compare.headline import write_headline, write_next
from tandem.compare.table import Table
from tandem.config import ConfigError, check, compose, configuration
from tandem.launch.devices import tasks_of_srun
from tandem.launch.train import main as train
from tandem.record.reading.runs import find, read
from tandem.record.reading.states import is_locked
from tandem.settings.settings import Devices
from tandem.sweep import gpus, status
from tandem.sweep.exit_reason import last_line, reason_of
from tandem.sweep.job import Launch, Task, wait_and_report
from tandem.sweep.job import make_environment as environment_of_run
from tandem.sweep.launch import (
    conclude,
    launch,
    list_hydra_overrides,
    listen_for_stop,
    make_environment,
)
from tandem.sweep.launch import configuration as told_of
from tandem.sweep.status import SweepPlan
from tandem.sweep.swept_values import find_one_that_runs
from tandem.sweep.table import SweepSummary, summarise, write_headlines
from tandem.sweep.words import name_job, parse_sweep


def test_a_sweep_option_says_what_is_swept_and_the_command_line_beats_it():
    sweep = parse_sweep(["sweep=[seeds,group_size]", "seed=7,8", "iterations=3"], multirun=False)
    assert sweep.swept == {"group_size": ["4", "8", "16"], "seed": ["7", "8"]}
    assert sweep.shared == ["iterations=3"]
    names = [f"group_size={size},seed={seed}" for size in (4, 8, 16) for seed in (7, 8)]
    assert list(sweep.jobs) == names
    assert sweep.jobs[names[0]] == ["iterations=3", "group_size=4", "seed=7"]
    assert parse_sweep(["sweep=[seeds]", "seed=3"], multirun=True).jobs == {"run": ["seed=3"]}


def test_the_folder_is_a_function_of_the_command_and_of_nothing_else(monkeypatch):
    monkeypatch.chdir("/")
    commands = (
        ["seed=0,1", "iterations=3"],
        ["iterations=3", "seed=0,1"],
        ["iterations=3", "seed=1,0", "hydra.sweeper.max_batch_size=1"],
        ["iterations=4", "seed=0,1"],
        ["iterations=3", "seed=0,1,2"],
        ["iterations=3", "seed=0,1,2", "sweep_dir=mine"],
    )
    folders = [parse_sweep(command, multirun=True).folder for command in commands]
    assert folders[0] == folders[1] == folders[2] and len({*folders}) == 4
    assert folders[0].parent == Path("/runs/sweeps") and folders[0].name.startswith("seed-")
    assert folders[-1] == Path("/mine")


def test_a_run_is_named_by_what_is_swept_and_two_never_share_a_name():
    assert name_job(["seed=1", "algorithm=grpo"]) == "algorithm=grpo,seed=1"
    assert name_job(["+rollout.top=2"]) == "rollout.top=2"
    odd = ["reward=[a,b]", "reward=[a b]", "reward={a:b}", f"x={'y' * 200}", f"x={'y' * 201}"]
    names = {name_job([line]) for line in odd}
    assert len(names) == len(odd)
    assert all(len(name) <= 100 and "/" not in name and "'" not in name for name in names)


EXPERIMENT = """\
# @package _global_
iterations: 3
hydra:
  mode: MULTIRUN
  sweeper:
    params: {algorithm: "grpo,rloo", seed: "0,1"}
"""


def test_an_experiment_sweeps_by_itself_but_a_run_of_it_does_not(tmp_path, monkeypatch):
    (tmp_path / "study" / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "study" / "__init__.py").write_text("")
    (tmp_path / "study" / "conf" / "experiment" / "two_by_two.yaml").write_text(EXPERIMENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    command = ["plugins=[study]", "experiment=two_by_two"]
    sweep = parse_sweep(command, multirun=False)
    assert list(sweep.jobs) == [f"algorithm={a},seed={s}" for a in ("grpo", "rloo") for s in (0, 1)]
    (job, *_) = sweep.jobs.values()
    assert job == [*command, "algorithm=grpo", "seed=0"]
    assert parse_sweep([*job, "hydra.mode=RUN"], multirun=False) is None  # else it would not end
    assert configuration([*job, "hydra.mode=RUN"]).iterations == 3


def test_a_pattern_finds_the_options_of_plugins_too():
    words = ["plugins=[experiments.my_idea]", "algorithm=glob([my_idea,rloo])"]
    assert parse_sweep(words, multirun=True).swept == {"algorithm": ["my_idea", "rloo"]}
    with pytest.raises(ConfigError, match=r"^plugins=glob\(\*\): give lists of modules"):
        parse_sweep(["plugins=glob(*)"], multirun=True)
    several = [
        "plugins=[experiments.my_idea],[experiments.reward_weighted]",
        "algorithm=glob(my_*)",
    ]
    assert parse_sweep(several, multirun=True).swept["algorithm"] == ["my_idea"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("iterations: 3\n" + EXPERIMENT.partition("iterations: 3\n")[2], "sets iterations"),
        ("hydra: {mode: MULTIRUN}", "sets none"),
    ],
)
def test_an_option_of_sweep_says_what_is_swept_and_no_more(tmp_path, monkeypatch, text, answer):
    package = f"wide_{answer.split()[1]}"  # a module is imported once in a process
    (tmp_path / package / "conf" / "sweep").mkdir(parents=True)
    (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / package / "conf" / "sweep" / "wide.yaml").write_text(f"# @package _global_\n{text}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ConfigError, match=f"^sweep=wide: its file must set .*, but it {answer}; put"
    ):
        parse_sweep([f"plugins=[{package}]", "sweep=wide"], multirun=False)


def test_one_run_cannot_be_what_is_many():
    with pytest.raises(
        ConfigError,
        match=r"^sweep=seeds is a sweep of many runs; use python -m tandem train sweep=",
    ):
        configuration(["sweep=seeds"])


def test_a_rank_does_not_start_the_sweep(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(ConfigError, match="LOCAL_RANK is set: each rank would start the whole"):
        parse_sweep(["seed=0,1"], multirun=True)


@pytest.mark.parametrize(
    ("code", "said", "reason"),
    [
        (0, "done", None),
        (1, "Traceback\nValueError: it broke\n  a note\nbye", "ValueError: it broke"),
        (1, "[rank1]: ValueError: no\nstopped: another\nhelp  x", "[rank1]: ValueError: no"),
        (1, "", "exit code 1"),
        (2, "unknown key 'sede'\n", "refused: unknown key 'sede'"),
        (3, "10%\r20%\nstopped: ties\nrun directory: x\ngo on       y\n", "stopped: ties"),
        (4, "in hang\nstalled: no progress\nrun directory: x\n", "stalled: no progress"),
        (75, "stopped after iteration 3", "it was asked to stop"),
        (-signal.SIGSEGV, "x", "killed by SIGSEGV"),
        (1, "OSError: https://me:pass@host said no", "OSError: https://<redacted>@host said no"),
    ],
)
def test_the_reason_is_one_line(code, said, reason):
    assert reason_of(code, said) == reason


def start(folder: Path, **changed) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    own = {"launch": "a", "number": 1, "host": "h", "pid": 1, "seconds": 61.4, "reason": None}
    status.write_start(folder, status.Start(**own | {"overrides": ["x=1"], "code": None} | changed))


def test_the_table_is_read_from_folders_while_the_sweep_goes_on(tmp_path):
    names = ("done", "old", "dead", "busy", "broke", "later")
    jobs = {name: ["x=1"] for name in names}
    plan = status.write_plan(tmp_path, "python train.py -m x=1", jobs)
    start(tmp_path / "done", code=0)
    start(tmp_path / "old", code=0, launch="b")
    start(tmp_path / "dead")
    start(tmp_path / "busy")
    start(tmp_path / "broke", code=1, reason="ValueError: it | broke")
    line = {"iteration": 3, "eval/accuracy": 0.5, "eval/reward": 0.25}
    (tmp_path / "done" / "metrics.jsonl").write_text(json.dumps(line) + '\n{"iteration": 4')
    with status.lock_folder(tmp_path / "busy"):
        text = summarise(tmp_path, plan, "a").markdown()
    rows = [row for row in text.splitlines() if row.startswith("| ")][2:]
    assert rows == [
        "| done | finished | 61 | 0.500 |  |",
        "| old | already finished | 61 |  |  |",
        "| dead | stopped | 61 |  | the sweep was killed during this run |",
        "| busy | running | 61 |  |  |",
        "| broke | failed | 61 |  | ValueError: it \\| broke |",
        "| later | waiting |  |  |  |",
    ]
    assert "Repeat the command to run what is missing (3):\n\n    python train.py -m x=1" in text


DAMAGED = ["[" * 100_000, "[]", '"x"', "1", "\0", '{"jobs": [1]}', '{"overrides": 1}']


PLANS = [
    '{"jobs": {"../x": []}, "commands": {}}',
    '{"jobs": {"x": [1]}, "commands": {}}',
    '{"jobs": {}, "commands": ["x"]}',
    '{"jobs": {}, "commands": {"x": 5}}',
]


@pytest.mark.parametrize("text", [*DAMAGED, *PLANS])
def test_a_plan_that_cannot_be_read_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(ValueError, match=r"it has no readable sweep\.json; give the folder of a"):
        status.read_plan(tmp_path)


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_start_or_log_of_a_run_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "job.json").write_text(text)
    with pytest.raises(ValueError, match=r"job\.json is damaged; restore a complete copy, or"):
        status.read_start(tmp_path)
    (tmp_path / "metrics.jsonl").write_text(f'{{"iteration": 0, "eval/accuracy": {text}}}\n')
    if text != "1":
        with pytest.raises(
            ValueError, match=r"^metrics\.jsonl has a line that is not a JSON object"
        ):
            status.score_of(tmp_path)
        (tmp_path / "job.json").unlink()
        job = status.read_job(tmp_path)  # its sweep goes on
        assert job.score is None and job.reason.startswith("metrics.jsonl has a line")
        start(tmp_path)
        assert status.read_job(tmp_path).reason == "the sweep was killed during this run"


@pytest.mark.parametrize(
    "other", [{"code": []}, {"overrides": [1, 2]}, {"reason": 5}, {"seconds": "x"}, {"pid": None}]
)
def test_a_start_with_a_value_of_another_type_is_damaged(tmp_path, other):
    start(tmp_path, code=0)
    whole = json.loads((tmp_path / "job.json").read_text())
    (tmp_path / "job.json").write_text(json.dumps(whole | other))
    with pytest.raises(ValueError, match=r"job\.json is damaged; restore a complete copy, or"):
        status.read_start(tmp_path)


def test_a_command_of_another_s_sweep_does_not_control_the_terminal(tmp_path):
    plan = SweepPlan(commands={"x\x1b[31m": ["a"]}, jobs={"a": []})
    said = summarise(tmp_path, plan).text(80)
    assert "\n    x [31m" in said and "\x1b" not in said


@pytest.mark.parametrize("dry_run", ["true", "false"])
def test_a_folder_that_a_sweep_cannot_use_is_refused_in_one_line(tmp_path, capsys, dry_run):
    file, folder, run = (tmp_path / name for name in ("file", "damaged", "damaged/seed=0"))
    run.mkdir(parents=True)
    for damaged in (file, folder / "sweep.json", run / "job.json"):
        damaged.write_text("{")
    said = {file: f"sweep_dir={file}: {file} is a file; give a directory"}
    said[folder] = f"{folder}: it has no readable sweep.json; give the folder of a sweep"
    if dry_run == "true":
        again = f"restore a complete copy, or remove {run} to run it again"
        said[folder] = f"{run}/job.json is damaged; {again}"
    for place, line in said.items():
        with pytest.raises(SystemExit) as ended:
            train(["-m", "seed=0,1", f"sweep_dir={place}", f"dry_run={dry_run}"])
        assert (ended.value.code, capsys.readouterr().err) == (2, f"{line}\n")


def test_on_a_file_system_without_locks_a_sweep_runs_and_a_run_is_not_locked(
    tmp_path, monkeypatch, caplog
):
    def refused(file, how):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refused)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "a,b")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)  # read again
    status.write_plan(tmp_path, "python train.py -m x=1", {"a": [], "b": []})
    for name in ("a", "b"):
        with status.lock_folder(tmp_path / name) as lock:
            assert lock is not None
        assert not is_locked(tmp_path / name)
    said = "cannot be locked (Function not implemented); start no second launch of these runs"
    assert [record.getMessage() for record in caplog.records] == [f"files {said}"]
    with gpus.share(3, 1) as share:  # in turn: all would lock the first one
        assert share == gpus.Share(environment={"CUDA_VISIBLE_DEVICES": "b"}, held=())


def test_a_launch_answers_for_its_own_runs_and_the_folder_keeps_all_that_was_planned(
    tmp_path, capsys
):
    own = status.write_plan(tmp_path, "mine", {"a": ["x=1"], "b": ["x=2"]})
    start(tmp_path / "a", overrides=["x=1"], code=1, reason="ValueError: it broke")
    start(tmp_path / "b", overrides=["x=2"], code=0)
    other = status.write_plan(tmp_path, "yours", {"b": ["x=3"], "c": ["x=4"]})
    start(tmp_path / "c", overrides=["x=4"], code=0)
    assert conclude(tmp_path, own, "a") == 1
    said = capsys.readouterr().out
    assert "1 finished, 1 failed, of 2 runs" in said and "\n    mine\n" in said
    assert conclude(tmp_path, other, "a") == 1
    assert "1 finished, 1 skipped, of 2 runs" in capsys.readouterr().out
    whole = status.read_plan(tmp_path)
    assert whole.jobs == {"a": ["x=1"], "b": ["x=2"], "c": ["x=4"]}
    assert whole.commands == {"mine": ["a", "b"], "yours": ["b", "c"]}
    text = summarise(tmp_path, whole).markdown()
    assert "2 finished, 1 failed, of 3 runs" in text
    assert "\n    mine" in text and "yours" not in text  # it has nothing left to run


def test_what_hydra_writes_of_a_sweep_holds_no_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("COPIED_TOKEN", "copied-secret")
    words = ["seed=0,1", "hydra.job.env_copy=[COPIED_TOKEN]", "+hydra.job.env_set.KEY=set-secret"]
    assert "secret" not in str(status.scrub_overrides(words))
    sweep = parse_sweep([*words, f"sweep_dir={tmp_path}"], multirun=True)
    shared = ["rollout.api_key=typed-secret", "iterations=3"]
    told = make_environment(sweep)
    assert told == {"COPIED_TOKEN": "copied-secret", "KEY": "set-secret"}
    order = Launch(
        id="a", folder=str(tmp_path), cwd="", program="", shared=shared, spelled={}, jobs=2,
        gpus=0, environment=told,
    )  # fmt: skip
    written = OmegaConf.to_yaml(told_of(sweep, order))
    assert "iterations=3" in written and "secret" not in written


def test_each_metric_has_a_column_of_its_own(tmp_path):
    scores = {"words": "eval/accuracy", "pictures": "eval/reward"}
    plan = status.write_plan(tmp_path, "x", {name: ["x=1"] for name in scores})
    for name, metric in scores.items():
        start(tmp_path / name, code=0)
        line = json.dumps({"iteration": 1, metric: 12.5})
        (tmp_path / name / "metrics.jsonl").write_text(f"{line}\n")
    assert [
        row for row in summarise(tmp_path, plan).markdown().splitlines() if row.startswith("| ")
    ] == [
        "| run | state | seconds | eval/accuracy | eval/reward | why |",
        "| --- | --- | --- | --- | --- | --- |",
        "| words | finished | 61 | 12.500 |  |  |",
        "| pictures | finished | 61 |  | 12.500 |  |",
    ]


def test_the_command_of_the_report_can_be_copied(tmp_path):
    plan = status.write_plan(tmp_path / "a sweep", "x", {"run": ["x=1"]})
    write_run(tmp_path / "a sweep" / "run", [0.25, 0.5])
    said = summarise(tmp_path / "a sweep", plan).markdown()
    assert f"\n    python -m tandem compare '{tmp_path}/a sweep' out=report" in said


def test_a_run_that_outlived_its_killed_sweep_is_finished_once_its_record_says_so(tmp_path):
    start(tmp_path / "run")
    write_run(tmp_path / "run", [0.25, 0.5], iterations=1)
    (tmp_path / "run" / "checkpoints" / "step_000001").mkdir()
    (tmp_path / "run" / "model").mkdir()
    assert status.read_job(tmp_path / "run").state == "stopped"  # its model may be half saved
    (tmp_path / "run" / "curves.png").touch()
    done = status.read_job(tmp_path / "run", ["x=1"])
    assert (done.state, done.reason) == ("finished", None)
    write_run(tmp_path / "short", [0.25, 0.5], iterations=2)
    start(tmp_path / "short")
    assert status.read_job(tmp_path / "short").reason == "the sweep was killed during this run"


def test_a_dry_run_checks_every_combination_and_starts_nothing(tmp_path, capsys):
    command = ["num_minibatches=1,64", "prompts_per_step=64,4", "dry_run=true"]
    sweep = parse_sweep([*command, f"sweep_dir={tmp_path}"], multirun=True)
    done, begun, *_ = sweep.jobs
    start(tmp_path / done, code=0, overrides=sweep.jobs[done])
    start(tmp_path / begun, code=75, overrides=sweep.jobs[begun])
    assert launch(sweep, ["train.py"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1 of 4  num_minibatches=1,prompts_per_step=64: already finished"
    assert lines[1].endswith(": would continue") and lines[2].endswith(": would start")
    assert ": would be refused: num_minibatches=64 needs as many groups, but" in lines[3]
    assert {path.name for path in tmp_path.iterdir()} == {done, begun}
    assert not parse_sweep(command[:2], multirun=True).dry_run
    assert (
        parse_sweep(command, multirun=True).folder == parse_sweep(command[:2], multirun=True).folder
    )


def test_a_run_of_a_sweep_is_no_task_of_the_srun_that_started_the_sweep(monkeypatch):
    """It starts its own ranks, and would wait for ever for the other tasks."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "TORCHELASTIC"))]:
        monkeypatch.delenv(name)
    two = Devices(devices=2, num_nodes=1, strategy="ddp", accelerator="cpu", precision="32-true")
    slurm = {"NTASKS": "2", "NTASKS_PER_NODE": "2", "PROCID": "0", "LOCALID": "0", "JOB_ID": "7"}
    slurm["STEP_ID"] = "0"
    for name, value in slurm.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert tasks_of_srun(two) == 2
    order = Launch(
        id="a", folder="", cwd="", program="", shared=[], spelled={}, jobs=1, gpus=0
    )  # fmt: skip
    task = Task(launch=order, number=0, own=["seed=0"])
    own = environment_of_run(task, gpus.Share(environment={}, held=()))
    monkeypatch.setattr(os, "environ", own)
    assert tasks_of_srun(two) == 0
    assert own["SLURM_JOB_ID"] == "7"


@pytest.mark.parametrize(
    ("swept", "wanted"),
    [("seed=0,1", 2), ("trainer.devices=2,4", None), ("trainer=auto,cpu", None)],
)
def test_runs_that_differ_in_their_devices_see_all_gpus(swept, wanted):
    words = [swept] if "devices" in swept else [swept, "trainer.devices=2"]
    assert parse_sweep(words, multirun=True).gpus == wanted


def test_runs_on_one_machine_take_gpus_of_their_own(monkeypatch, tmp_path):
    monkeypatch.setattr(gpus.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv(gpus.VISIBLE, "0,3,5")
    with gpus.share(0, 1) as one, gpus.share(1, 1) as other, gpus.share(2, 2) as pair:
        assert [s.environment[gpus.VISIBLE] for s in (one, other)] == ["0", "3"]
        assert pair.environment[gpus.VISIBLE] == "3,5" and not pair.held  # one is free: they share
    with gpus.share(7, 2) as pair:
        assert pair.environment[gpus.VISIBLE] == "0,3" and len(pair.held) == 2
    for wanted in (0, None, 3):  # on the CPU; whatever there is; all of them
        with gpus.share(0, wanted) as whole:
            assert whole.environment == {}


def test_a_folder_of_locks_that_only_its_user_could_write_is_closed(monkeypatch, tmp_path):
    """As earlier versions made it."""
    monkeypatch.setattr(gpus.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv(gpus.VISIBLE, "0,3,5")
    folder = tmp_path / f"tandem-gpus-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o755)
    with gpus.share(0, 1) as one:
        assert one.held
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", ["a link", "open to others"])
def test_in_a_folder_that_others_may_write_no_gpu_is_locked(monkeypatch, tmp_path, caplog, mode):
    """On a machine with several users another one could lead the lock files elsewhere."""
    monkeypatch.setattr(gpus.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv(gpus.VISIBLE, "0,3,5")
    folder, theirs = tmp_path / f"tandem-gpus-{os.getuid()}", tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    if mode == "a link":
        folder.symlink_to(theirs)
    else:
        folder.mkdir()
        folder.chmod(0o777)
        (folder / "0").symlink_to(theirs / "made")
    with gpus.share(0, 1) as one, gpus.share(4, 2) as pair:
        assert [s.environment[gpus.VISIBLE] for s in (one, pair)] == ["0", "5,0"]
        assert not one.held and not pair.held
    assert not list(theirs.iterdir())
    (said,) = caplog.messages
    assert said == (
        f"{folder} is not private to you (mode 700), so runs take GPUs in turn, even those that "
        "another run holds; remove it, or set TMPDIR to another folder"
    )


TALKING = """
import time
for accuracy in ("0.1", "0.2"):
    print(f"9/150  accuracy {accuracy}\\n", flush=True)
    time.sleep(0.5)
"""


def test_what_a_job_does_is_told_while_it_does_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tandem.sweep.job.TOLD_EVERY", 0.1)
    order = Launch(
        id="here-1", folder=str(tmp_path), cwd=".", program="-", shared=[], spelled={}, jobs=6,
        gpus=None,
    )  # fmt: skip
    task = Task(launch=order, number=1, own=["seed=1"])
    task.folder.mkdir()
    with (task.folder / status.LOG).open("wb") as log:
        wait_and_report(subprocess.Popen([sys.executable, "-c", TALKING], stdout=log), task)
    said = capsys.readouterr().out.splitlines()
    assert said == [f"2 of 6  seed=1: 9/150  accuracy 0.{n}" for n in (1, 2)]


def test_the_last_line_of_a_log_shows_no_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "sk-123456789abcdef")
    (tmp_path / "log").write_text("first\nasking with sk-123456789abcdef\n\n")
    assert "sk-123456789abcdef" not in last_line(tmp_path / "log")
    (tmp_path / "empty").touch()
    assert last_line(tmp_path / "empty") is None


def test_a_sweep_ends_with_the_headline_of_its_comparison(tmp_path):
    write_sweep(tmp_path, {"grpo": [0.80, 0.82, 0.81], "rloo": [0.50, 0.53, 0.51]})
    said = write_headlines(tmp_path)
    found = compare([read(path) for path in find([tmp_path])], Request())
    assert said == [write_headline(found), f"Next: {write_next(found)[0]}"]
    assert said[0].startswith("grpo has the highest eval/accuracy: 0.810")
    summary = SweepSummary(table=Table(name="t", title="T", columns=["a"], rows=[]), notes=said)
    assert max(map(len, summary.text(50).splitlines())) <= 50


def test_runs_without_a_metric_in_common_have_no_headline_and_a_reason(tmp_path):
    write_sweep(tmp_path, {"grpo": [0.8]})
    path = tmp_path / "grpo-0" / "metrics.jsonl"
    path.write_text(path.read_text().replace("eval/accuracy", "loss"))
    (said,) = write_headlines(tmp_path)
    assert said.startswith("No comparison: most runs lack eval/accuracy and eval/reward")


def test_hydra_is_told_of_no_group_that_composing_has_made_known_to_it():
    """A loss without a preset is an option of `algorithm`, so the store has that group."""
    sweep = parse_sweep(
        ["algorithm=grpo,rloo", "algorithm/loss=ppo,cispo", "seed=0,1"], multirun=True
    )
    configuration(["algorithm=opsm"])
    known = ConfigStore.instance()
    assert known.get_type("algorithm") is ObjectType.GROUP
    told = [word.removeprefix("++").partition("=")[0] for word in list_hydra_overrides(sweep)]
    assert told == ["swept/algorithm", "swept/algorithm/loss", "seed"]
    assert not any(known.get_type(name) is ObjectType.GROUP for name in told)


def test_a_refusal_names_the_value_that_no_run_of_the_sweep_can_have():
    """The reason is about the data, but the swept key is the algorithm."""
    sweep = parse_sweep(["algorithm=grpo,dpo", "seed=0,1"], multirun=True)
    with pytest.raises(ConfigError, match=r"^algorithm=dpo: data=sort_ladder has no chosen"):
        find_one_that_runs(sweep, check)
    sweep = parse_sweep(["group_size=4,1"], multirun=True)
    with pytest.raises(ConfigError, match=r"^group_size=1: group_relative compares"):
        find_one_that_runs(sweep, check)


def test_a_number_that_only_one_of_two_swept_losses_has_is_refused_with_the_two_sweeps_that_run():
    own, number = "algorithm/loss=ppo,reinforce", "algorithm.loss.clip_high=0.2,0.3"
    first, second = f"algorithm/loss=ppo {number}", "algorithm/loss=reinforce"
    with pytest.raises(ConfigError) as refused:
        find_one_that_runs(parse_sweep([own, number, "seed=0,1"], multirun=True), check)
    assert str(refused.value).startswith(
        "algorithm/loss=reinforce runs only without algorithm.loss.clip_high: write two sweeps "
        f"with one sweep_dir=FOLDER, `{first}` and `{second}` (unknown key "
    )
    for words in (first, second):
        sweep = parse_sweep([*words.split(), "num_minibatches=1", "seed=0,1"], multirun=True)
        find_one_that_runs(sweep, check)


def test_a_number_that_no_swept_loss_has_is_not_split():
    words = ["algorithm/loss=reinforce,cispo", "algorithm.loss.none=1,2"]
    with pytest.raises(ConfigError, match=r"unknown key 'algorithm\.loss\.none'") as refused:
        find_one_that_runs(parse_sweep(words, multirun=True), check)
    assert "two sweeps" not in str(refused.value)


def test_a_misspelt_value_is_refused_before_any_other_is_checked():
    def check(cfg):
        raise AssertionError("checking imports heavy libraries")

    sweep = parse_sweep(["algorithm=rloo,grop", "seed=0,1"], multirun=True)
    with pytest.raises(ConfigError, match=r"^unknown option of algorithm 'grop': did you mean"):
        find_one_that_runs(sweep, check)


def test_a_combination_is_composed_once(monkeypatch):
    composed = []
    monkeypatch.setattr(
        "tandem.sweep.swept_values.compose", lambda row: composed.append(row) or compose(row)
    )
    find_one_that_runs(parse_sweep(["epochs=1,2", "seed=0,1"], multirun=True), check)
    assert len(composed) == len({*composed}) > 1


def test_a_sweep_whose_terminal_was_closed_is_stopped_as_well(tmp_path):
    """SIGHUP comes with it, and stderr has no reader any more."""
    order = SimpleNamespace(stop_file=tmp_path / "stop", folder=tmp_path, id="0")
    reader, gone = os.pipe()
    os.close(reader)
    stderr = os.dup(2)
    os.dup2(gone, 2)
    try:
        with listen_for_stop(order):
            signal.raise_signal(signal.SIGHUP)
            assert order.stop_file.exists()
    finally:
        os.dup2(stderr, 2)
        os.close(gone)
        os.close(stderr)
