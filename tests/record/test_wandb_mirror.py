import os
import signal
import subprocess
import time

import pytest
import torch
import wandb
from faulty_server import drips_headers, says
from faulty_server import serving as proxy
from wandb_files import inspect, of_type, tables
from wandb_server import serving

from tandem.record import jsonl
from tandem.record.run_record import RunRecord
from tandem.record.wandb_mirror import Wandb

pytestmark = pytest.mark.system


@pytest.fixture
def client(tmp_path, monkeypatch):
    """A client without the user's settings, credentials or runs."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    wandb.teardown()
    yield monkeypatch
    wandb.teardown()


def train(folder, mirror: Wandb, iterations: int = 3) -> tuple[list[dict], float]:
    """A run that only logs: its lines, and the seconds until its first one."""
    record = RunRecord(folder, mirrors=[mirror])
    record.begin("seed: 0\nchoices:\n  algorithm: grpo", seed=0, command=["train.py"])
    start = time.perf_counter()
    record.open(0)
    delay = time.perf_counter() - start
    run_iterations(record, 0, iterations)
    record.close()
    return jsonl.read(folder / "metrics.jsonl"), delay


def run_iterations(record: RunRecord, first: int, end: int, shown=lambda i: f"text {i}") -> None:
    """Iterations of a run: the evaluation, then the line."""
    for i in range(first, end):
        record.samples(i, [observe(shown(i), "eval"), observe(shown(i), "best")])
        record.write(i, {"reward/mean": i / 3, "samples": 8 * i}, {"time/total": 2.0 * i})


def observe(output, kind: str) -> dict:
    of_all = {"source": "s", "prompt": "p", "answer": 7, "reward": 0.5, "length": 3}
    return {"kind": kind, "output": output, **of_all}


def picture(i: int) -> torch.Tensor:
    return torch.full((4, 6, 3), 40 * i, dtype=torch.uint8)


def store(folder) -> list[dict]:
    """The history that W&B would upload."""
    return [found["item"] for found in of_type("history", inspect(folder))]


def warnings(caplog) -> list[str]:
    """The warnings that a user sees."""
    return [r.getMessage() for r in caplog.records if r.name.startswith("tandem")]


def test_an_unreachable_server_costs_no_line_and_no_time(tmp_path, client, caplog):
    want, _ = train(tmp_path / "without", Wandb(project="p", mode="offline"))
    wandb.teardown()
    client.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    client.setenv("WANDB_API_KEY", "0" * 40)
    got, delay = train(tmp_path / "with", Wandb(project="p"))
    assert got == want
    assert delay < 6
    assert warnings(caplog) == [
        "W&B does not answer at http://127.0.0.1:9: the run is kept offline"
    ]
    assert len(store(tmp_path / "with")) == 3


@pytest.mark.parametrize(
    "first",
    [
        pytest.param([], id="at once", marks=pytest.mark.slow),
        pytest.param([says({"ok": True})], id="after an answer"),
    ],
)
def test_a_proxy_that_drips_headers_delays_the_start_by_ten_seconds_at_most(
    tmp_path, client, caplog, first
):
    _, usual = train(tmp_path / "without", Wandb(project="p", mode="offline"))
    wandb.teardown()
    client.setenv("WANDB_BASE_URL", "http://wandb.invalid")
    client.setenv("WANDB_API_KEY", "0" * 40)
    client.delenv("no_proxy", raising=False)
    client.delenv("NO_PROXY", raising=False)
    with proxy(behaviour=drips_headers) as server:
        server.script.extend(first)
        for name in ("http_proxy", "HTTP_PROXY"):
            client.setenv(name, server.url)
        lines, delay = train(tmp_path / "run", Wandb(project="p"))
    assert delay - usual < 10
    assert len(lines) == len(store(tmp_path / "run")) == 3
    assert len(warnings(caplog)) == 1
    assert warnings(caplog)[0].endswith("kept offline")


def test_a_server_that_lets_nobody_in_leaves_the_run_offline(tmp_path, client, caplog):
    client.setenv("WANDB_API_KEY", "0" * 40)
    with serving(refuses=True) as server:
        client.setenv("WANDB_BASE_URL", server.url)
        lines, _ = train(tmp_path / "run", Wandb(project="p"))
    assert len(lines) == len(store(tmp_path / "run")) == 3
    assert warnings(caplog)[0].startswith("W&B does not start a run (")


def test_an_error_without_a_message_leaves_the_run_offline_too(tmp_path, client, caplog):
    client.setenv("WANDB_API_KEY", "0" * 40)
    start = wandb.init

    def init(mode, **given):
        if mode == "online":
            raise TimeoutError
        return start(mode=mode, **given)

    client.setattr(wandb, "init", init)
    with serving() as server:
        client.setenv("WANDB_BASE_URL", server.url)
        lines, _ = train(tmp_path / "run", Wandb(project="p"))
    assert len(lines) == len(store(tmp_path / "run")) == 3
    assert warnings(caplog) == ["W&B does not start a run (TimeoutError): it is kept offline"]


def test_nobody_is_asked_when_the_user_is_not_logged_in(tmp_path, client, caplog):
    client.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    train(tmp_path / "run", Wandb(project="p"))
    assert warnings(caplog) == []
    assert len(store(tmp_path / "run")) == 3


def test_a_login_in_netrc_counts(tmp_path, client, caplog):
    (tmp_path / ".netrc").write_text(f"machine 127.0.0.1 login user password {'0' * 40}\n")
    client.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    train(tmp_path / "run", Wandb(project="p"))
    assert "does not answer" in warnings(caplog)[0]


def test_every_iteration_is_one_row_with_its_samples_and_any_axis_can_be_chosen(tmp_path, client):
    train(tmp_path / "run", Wandb(project="p", mode="offline"))
    records = inspect(tmp_path / "run")
    assert [end.get("exit_code", 0) for end in of_type("exit", records)] == [0]
    history = [found["item"] for found in of_type("history", records)]
    assert [row["_step"] for row in history] == [row["iteration"] for row in history] == [0, 1, 2]
    seen_at = [(i, "eval", f"text {i}") for i in range(3)]
    assert columns(tables("samples/evaluation", records)) == seen_at
    trained_on = [(i, "best", f"text {i}") for i in range(3)]
    assert columns(tables("samples/training", records)) == trained_on
    assert columns(tables("samples/evaluations", records)) == seen_at  # all of them, in one table
    metrics = of_type("metric", records)
    assert {one["name"] for one in metrics if "name" in one} >= {
        *("iteration", "samples", "tokens"),
        *("time/reached", "time/reached_cpu", "time/reached_gpu"),
    }
    assert [one["step_metric"] for one in metrics if one.get("glob_name") == "*"] == ["iteration"]


def test_a_run_that_is_started_while_an_exception_is_handled_has_not_failed(tmp_path, client):
    try:
        raise ValueError("of another run")
    except ValueError:
        train(tmp_path / "run", Wandb(project="p", mode="offline"))
    records = inspect(tmp_path / "run")
    assert [end.get("exit_code", 0) for end in of_type("exit", records)] == [0]


def columns(tables: list[list[dict]]) -> list[tuple]:
    rows = [row for table in tables for row in table]
    return [(row["iteration"], row["kind"], row["output"]) for row in rows]


def test_a_run_that_goes_on_is_whole_in_one_folder_and_has_no_point_twice(tmp_path, client):
    folder, mirror = tmp_path / "run", Wandb(project="p", mode="offline")
    train(folder, mirror, iterations=4)
    for start in (2, 3):  # it died and went back to a checkpoint, twice
        record = RunRecord(folder, mirrors=[mirror])
        record.cut(start)
        record.open(start)
        run_iterations(record, start, start + 2)
        record.close()
    records = inspect(folder)  # of the only folder
    history = [found["item"] for found in of_type("history", records)]
    assert [row["iteration"] for row in history] == [row["_step"] for row in history] == [*range(5)]
    assert [row["time/total"] for row in history] == [0, 2, 4, 6, 8]
    shown = columns(tables("samples/evaluation", records))
    assert shown == [(i, "eval", f"text {i}") for i in range(5)]
    begun = of_type("run", records)[0]
    assert begun["run_id"] == record.id
    assert not begun.get("resumed")  # once uploaded, it replaces the upload of another start


def test_pictures_stay_pictures_and_a_mirror_that_comes_later_has_them_all(tmp_path, client):
    record = RunRecord(tmp_path)
    record.begin("seed: 0\n", seed=0, command=["train.py"])
    run_iterations(record, 0, 2, picture)
    later = RunRecord(tmp_path, mirrors=[Wandb(project="p", mode="offline")])
    later.open(2)
    run_iterations(later, 2, 3, picture)
    later.close()
    records = inspect(tmp_path)
    history = [found["item"] for found in of_type("history", records)]
    assert [row["samples"] for row in history] == [0, 8, 16]
    assert {row["pictures/eval._type"] for row in history} == {"image-file"}
    for name in ("samples/evaluation", "samples/evaluations"):
        shown = columns(tables(name, records))
        assert [(i, output["_type"]) for i, _, output in shown] == [
            (i, "image-file") for i in range(3)
        ]
        assert len({output["sha256"] for *_, output in shown}) == 3


def test_a_client_that_dies_ends_no_run(tmp_path, client, caplog):
    record = RunRecord(tmp_path / "run", mirrors=[Wandb(project="p", mode="offline")])
    record.begin("seed: 0\n", seed=0, command=["train.py"])
    record.open(0)
    run_iterations(record, 0, 1)
    start = time.monotonic()
    for process in of_wandb():
        os.kill(process, signal.SIGKILL)
    run_iterations(record, 1, 4)
    record.close()
    assert time.monotonic() - start < 30
    assert len(jsonl.read(tmp_path / "run" / "metrics.jsonl")) == 4
    assert len(warnings(caplog)) == 1
    assert warnings(caplog)[0].startswith("mirror Wandb is off: ")
    with pytest.raises(ConnectionError):
        wandb.teardown()  # it warns again at the end of a process, unheard


def of_wandb() -> list[int]:
    """The processes that W&B started for this one."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,comm="], capture_output=True, text=True)
    rows = [line.split(None, 2) for line in listed.stdout.splitlines()]
    return [
        int(pid) for pid, parent, name in rows if int(parent) == os.getpid() and "wandb" in name
    ]


def test_no_place_to_write_ends_no_run(tmp_path, client, caplog):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "wandb").write_text("a file where a folder should be")
    lines, _ = train(tmp_path / "run", Wandb(project="p", mode="offline"))
    assert len(lines) == 3
    assert len(warnings(caplog)) <= 1


@pytest.mark.parametrize("tag", ["", "x" * 65])
def test_a_tag_that_the_server_refuses_is_refused_before_it(tag):
    with pytest.raises(ValueError, match="a tag of W&B has 1 to 64 characters"):
        Wandb(project="p", tags=[tag])


def test_a_mode_that_is_none_is_refused():
    with pytest.raises(ValueError, match="auto, online or offline, not 'onlin'"):
        Wandb(project="p", mode="onlin")
