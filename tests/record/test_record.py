import json
import math
import os

import pytest
import torch
import wandb

from tandem.record import jsonl
from tandem.record.finished import planned_iterations
from tandem.record.mirrors import Csv, Mirrors, TensorBoard
from tandem.record.reading import runs
from tandem.record.run_record import RunRecord
from tandem.record.wandb_mirror import Wandb
from tandem.types import Prompt


def record_of(folder, mirrors=(), *, resumed: bool = False) -> RunRecord:
    record = RunRecord(folder, mirrors=mirrors)
    record.begin("seed: 0\n", seed=0, command=["train.py"], resumed=resumed)
    return record


def row(kind: str, output: str = "abc") -> dict:
    facts = {"kind": kind, "source": "sort", "prompt": "cba>", "answer": "abc", "output": output}
    return facts | {"reward": 1.0, "parts": {"exact": 1.0}, "length": 4, "truncated": False}


def test_what_is_held_joins_the_next_line_only(tmp_path):
    record = record_of(tmp_path)
    record.hold({"eval/accuracy": 0.5}, {"time/evaluate": 2.0})
    record.write(0, {"reward/mean": 0.1}, {"time/total": 3.0})
    record.write(1, {"reward/mean": 0.2}, {"time/total": 4.0})
    assert jsonl.read(tmp_path / "metrics.jsonl") == [
        {"iteration": 0, "eval/accuracy": 0.5, "reward/mean": 0.1},
        {"iteration": 1, "reward/mean": 0.2},
    ]
    assert jsonl.read(tmp_path / "timing.jsonl") == [
        {"iteration": 0, "time/evaluate": 2.0, "time/total": 3.0},
        {"iteration": 1, "time/total": 4.0},
    ]
    assert record.latest == {"eval/accuracy": 0.5, "reward/mean": 0.2} | {
        "time/evaluate": 2.0,
        "time/total": 4.0,
    }


def test_the_order_in_which_numbers_come_does_not_show(tmp_path):
    forwards, backwards = record_of(tmp_path / "a"), record_of(tmp_path / "b")
    forwards.write(0, {"x": 1.0, "y": 2.0}, {})
    backwards.hold({"y": 2.0}, {})
    backwards.write(0, {"x": 1.0}, {})
    first, second = (tmp_path / name / "metrics.jsonl" for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_a_resumed_record_continues_as_if_nothing_had_happened(tmp_path):
    straight, killed = record_of(tmp_path / "straight"), record_of(tmp_path / "killed")
    for i in range(6):
        straight.write(i, {"x": i / 3}, {"time/total": float(i)})
    for i in range(5):
        killed.write(i, {"x": i / 3}, {"time/total": 10.0 * i})
    jsonl.append(killed.folder / "metrics.jsonl", {"iteration": 5, "x": 5 / 3})
    os.truncate(
        killed.folder / "metrics.jsonl", (killed.folder / "metrics.jsonl").stat().st_size - 3
    )
    resumed = RunRecord(killed.folder)
    resumed.cut(3)
    assert resumed.totals(["time/total", "time/cpu"]) == {"time/total": 20.0, "time/cpu": 0.0}
    for i in range(3, 6):
        resumed.write(i, {"x": i / 3}, {"time/total": 20.0 + i})
    want = (straight.folder / "metrics.jsonl").read_bytes()
    assert (killed.folder / "metrics.jsonl").read_bytes() == want
    assert [line["iteration"] for line in jsonl.read(killed.folder / "timing.jsonl")] == [*range(6)]


def test_what_an_evaluation_found_of_each_prompt_is_a_line_that_resuming_cuts_back(tmp_path):
    record = record_of(tmp_path)
    asked = [Prompt(id=i, source=source, text="?") for i, source in ((7, "easy"), (9, "hard"))]
    for i in (0, 4):
        record.prompts(i, asked, {"eval/accuracy": [0.25 * i, math.nan]})
    line = {"prompts": [7, 9], "sources": ["easy", "hard"], "eval/accuracy": [1.0, None]}
    assert jsonl.read(tmp_path / "evaluations.jsonl")[1] == {"iteration": 4, **line}
    RunRecord(tmp_path).cut(4)
    assert [line["iteration"] for line in jsonl.read(tmp_path / "evaluations.jsonl")] == [0]


def test_samples_written_again_replace_their_kind(tmp_path):
    record = record_of(tmp_path)
    record.samples(20, [row("eval", "first")])
    record.samples(20, [row("best"), row("worst")])
    record.samples(20, [row("eval", "again")])
    rows = jsonl.read(tmp_path / "samples" / "iteration_000020.jsonl")
    assert [(r["kind"], r["output"]) for r in rows] == [
        ("best", "abc"),
        ("worst", "abc"),
        ("eval", "again"),
    ]


def test_samples_of_iterations_that_were_cut_go(tmp_path):
    record = record_of(tmp_path)
    for iteration in (0, 20, 40, 1_000_000):
        record.samples(iteration, [row("eval")])
    (tmp_path / "samples" / "iteration_000020.jsonl.tmp").write_text("{")  # a kill in a write
    record.cut(20)
    assert [p.name for p in (tmp_path / "samples").iterdir()] == ["iteration_000000.jsonl"]


def test_a_start_after_one_without_an_iteration_records_only_itself(tmp_path):
    dead = record_of(tmp_path)
    dead.samples(0, [row("eval")])
    dead.prompts(0, [Prompt(id=1, source="easy", text="?")], {"eval/accuracy": [0.5]})
    before, again = dead.id, RunRecord(tmp_path)
    again.begin("seed: 1\n", seed=1, command=["train.py", "seed=1"])
    assert (tmp_path / "config.yaml").read_text() == "seed: 1\n"
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["seed"] == 1 and manifest["id"] != before
    assert [one["command"] for one in manifest["starts"]] == ["train.py seed=1"]
    assert not again.evaluations() and not [*(tmp_path / "samples").iterdir()]


def test_a_resumed_run_keeps_the_id_and_the_configuration(tmp_path):
    first = record_of(tmp_path)
    second = RunRecord(tmp_path)
    second.begin("seed: 1\n", seed=1, command=["train.py", "resume=x"], resumed=True)
    assert first.id == second.id
    assert (tmp_path / "config.yaml").read_text() == "seed: 0\n"
    starts = json.loads((tmp_path / "manifest.json").read_text())["starts"]
    assert [s["command"] for s in starts] == ["train.py", "train.py resume=x"]


def test_a_run_that_goes_on_to_another_iteration_records_where_it_ends(tmp_path):
    """The rest stays as written: a value of several lines, a number that PyYAML reads as text."""
    rest = "seed: 0\niterations_of_another: 3\noverrides:\n- 'a\n\n  b'\n- iterations={}\n"
    rest += "lr: {}e-4\n"
    record = RunRecord(tmp_path)
    record.begin("iterations: 100\n" + rest.format(100, 1), seed=0, command=["train.py"])
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 100}\n')
    assert runs.read(tmp_path).state == "finished"
    resumed = RunRecord(tmp_path)
    longer = "iterations: 400\n" + rest.format(400, 2)
    resumed.begin(longer, seed=0, command=["train.py"], resumed=True)
    assert (tmp_path / "config.yaml").read_text() == "iterations: 400\n" + rest.format(400, 1)
    assert runs.read(tmp_path).state != "finished" and planned_iterations(tmp_path) == 400


class Failing:
    """A mirror that fails on request and records its calls."""

    def __init__(self, fails_at: str) -> None:
        self.fails_at = fails_at
        self.asked: list[str] = []

    def _asked(self, name: str) -> None:
        self.asked.append(name)
        if name == self.fails_at:
            raise OSError("the other end\nhung up")

    def open(self, run) -> None:
        self._asked("open")

    def write(self, iteration, metrics) -> None:
        self._asked("write")

    def samples(self, iteration, rows) -> None:
        self._asked("samples")

    def close(self) -> None:
        self._asked("close")


@pytest.mark.parametrize("moment", ["open", "write", "samples", "close"])
def test_a_mirror_that_fails_is_named_once_and_left_out(tmp_path, caplog, moment):
    failing, healthy = Failing(moment), Failing("never")
    record = record_of(tmp_path, [failing, healthy])
    record.open(0)
    for i in range(3):
        record.write(i, {"x": 1.0}, {})
        record.samples(i, [row("eval")])
    record.close()
    assert healthy.asked == ["open", *["write", "samples"] * 3, "close"]
    assert failing.asked == healthy.asked[: healthy.asked.index(moment) + 1]
    assert [r.message for r in caplog.records] == ["mirror Failing is off: the other end hung up"]
    assert len(jsonl.read(tmp_path / "metrics.jsonl")) == 3


def test_the_table_grows_columns_and_a_resumed_one_has_the_lines_of_the_record(tmp_path):
    record = record_of(tmp_path, [Csv()])
    record.open(0)
    record.write(0, {"eval/accuracy": 0.5}, {})
    record.write(1, {"reward/mean": 0.25}, {"time/total": 1.5})
    want = "iteration,eval/accuracy,reward/mean,time/total\n0,0.5,,\n1,,0.25,1.5\n"
    assert (tmp_path / "metrics.csv").read_text().replace("\r", "") == want
    record.write(2, {"reward/mean": 0.75}, {"time/total": 2.5})
    resumed = RunRecord(tmp_path, mirrors=[Csv()])
    resumed.cut(2)
    resumed.open(2)
    assert (tmp_path / "metrics.csv").read_text().replace("\r", "") == want


def viewer(folder):
    """What TensorBoard reads the event files of a run with."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder / "tensorboard"))


def points(events) -> list[tuple[int, float]]:
    events.Reload()
    return [(one.step, one.value) for one in events.Scalars("x")]


def texts(folder) -> list:
    """The tables of samples, as TensorBoard's server reads them."""
    from tensorboard.backend.event_processing import plugin_event_accumulator

    events = plugin_event_accumulator.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return events.Tensors("samples/greedy/text_summary")


def go_on(folder, first: int, values: list[float], mirrors) -> None:
    """A start of a run from the checkpoint at iteration `first`."""
    record = record_of(folder, mirrors, resumed=first > 0)
    record.cut(first)
    record.open(first)
    for i, value in enumerate(values, start=first):
        record.samples(i, [paint("eval"), row("greedy", "a|b\nc")])
        record.write(i, {"x": value}, {})
    record.close()


@pytest.mark.parametrize("first", [0, 2])
def test_tensorboard_of_a_resumed_run_has_every_point_once(tmp_path, first):
    go_on(tmp_path, 0, [0.0, 0.25, 0.5], [TensorBoard()])
    running = viewer(tmp_path)
    assert points(running) == [(0, 0.0), (1, 0.25), (2, 0.5)]
    go_on(tmp_path, first, [0.75, 1.0], [TensorBoard()])
    kept = [(0, 0.0), (1, 0.25)][:first]
    for events in (running, viewer(tmp_path)):
        assert points(events) == [*kept, (first, 0.75), (first + 1, 1.0)]


def test_tensorboard_of_a_resumed_run_shows_the_iterations_before_it_was_added(tmp_path):
    go_on(tmp_path, 0, [0.0, 0.25, 9.0], [])
    for first in (2, 3):
        go_on(tmp_path, first, [first / 4], [TensorBoard()])
    events = viewer(tmp_path)
    assert points(events) == [(i, i / 4) for i in range(4)]
    assert [one.step for one in events.Images("pictures/eval")] == [0, 1, 2, 3]
    assert [one.step for one in texts(tmp_path)] == [0, 1, 2, 3]


def test_tensorboard_has_the_iterations_of_a_start_without_it(tmp_path):
    for first, mirrors in ((0, [TensorBoard()]), (1, []), (2, [TensorBoard()])):
        go_on(tmp_path, first, [first / 4], mirrors)
    events = viewer(tmp_path)
    assert points(events) == [(i, i / 4) for i in range(3)]
    assert [one.step for one in texts(tmp_path)] == [0, 1, 2]


def test_tensorboard_shows_the_characters_of_a_sample(tmp_path):
    plugin_util = pytest.importorskip("tensorboard.plugin_util")
    record = record_of(tmp_path, [TensorBoard()])
    record.open(0)
    record.samples(0, [row("greedy", "a|b\\|c\\d\ne\r\nf\rg `h\\n`")])
    record.close()
    (text,) = texts(tmp_path)
    (table,) = text.tensor_proto.string_val
    page = plugin_util.markdown_to_safe_html(table.decode())
    assert "<td>a|b\\|c\\d<br>e<br>f<br>g `h\\n`</td>" in page


def test_a_missing_package_is_one_line_that_names_the_extra(tmp_path, caplog, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    record = record_of(tmp_path, [TensorBoard()])
    record.open(0)
    record.write(0, {"x": 1.0}, {})
    (said,) = caplog.records
    assert said.message == (
        'mirror TensorBoard is off: it needs a package: pip install -e ".[tensorboard]"'
    )


def paint(kind: str) -> dict:
    return row(kind) | {"output": torch.randint(0, 256, (4, 6, 3), dtype=torch.uint8)}


def test_tensorboard_shows_pictures(tmp_path):
    record = record_of(tmp_path, [TensorBoard()])
    record.open(0)
    record.samples(4, [paint("eval"), paint("eval"), row("greedy")])
    record.close()
    events = viewer(tmp_path)
    events.Reload()
    assert events.Tags()["images"] == ["pictures/eval"]
    (image,) = events.Images("pictures/eval")
    assert (image.step, image.width, image.height) == (4, 15, 6)


@pytest.fixture
def fresh_wandb():
    """The client reads its environment once; each test gets its own."""
    wandb.teardown()
    yield
    wandb.teardown()


CANARIES = [f"canary{i:02d}x7f3a" for i in range(25)]


def test_no_secret_reaches_the_run_directory(tmp_path, monkeypatch, fresh_wandb):
    """25 secrets in variables, options, URLs, configuration; none in any file, W&B's included."""
    held = [("A_KEY", 0), ("B_TOKEN", 1), ("C_SECRET", 2), ("D_PASSWORD", 3), ("hf_token", 4)]
    for name, i in held:
        monkeypatch.setenv(name, CANARIES[i])
    monkeypatch.setenv("WANDB_MODE", "offline")
    options = ["logger.api_key", "token", "judge.password", "+x.client_secret", "x.hf_token"]
    command = ["train.py", *(f"{name}={CANARIES[5 + i]}" for i, name in enumerate(options))]
    command += [f"note={CANARIES[i]}" for i in range(5)]
    command += [f"data.path=https://me:{CANARIES[10]}@example.org/x", f"u=ftp://{CANARIES[11]}@h"]
    command += ["--auth-token", CANARIES[12], f"+j={{api_key:{CANARIES[13]}}}"]
    lines = [f"a_{i}: https://u:{CANARIES[14 + i]}@example.org" for i in range(3)]
    names = ("api_key", "password", "access_token", "secret_key", "credentials")
    lines += ["judge:", *(f"  {name}: {CANARIES[17 + i]}" for i, name in enumerate(names))]
    lines += ["choices:", f"  data: {CANARIES[0]}", f"  model: http://{CANARIES[22]}@h"]
    lines += [f"  db_password: {CANARIES[23]}"]
    lines += ["overrides:", f"- reward.judge.api_key={CANARIES[24]}", f"- note={CANARIES[1]}"]
    monkeypatch.setattr("sys.argv", command)

    record = RunRecord(tmp_path, mirrors=[Wandb(project="p"), Csv()])
    record.begin("\n".join(lines), seed=0, command=command)
    record.open(0)
    record.write(0, {"x": 1.0}, {})
    record.samples(0, [row("eval")])
    record.close()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files)
    leaks = {p.name: c for p in files for c in CANARIES if c.encode() in p.read_bytes()}
    assert leaks == {}


def test_wandb_gets_pictures_as_pictures(tmp_path, fresh_wandb, caplog):
    record = record_of(tmp_path, [Wandb(project="p", mode="offline")])
    record.open(0)
    record.samples(4, [paint("eval"), paint("eval"), paint("sampled")])
    record.write(4, {"x": 1.0}, {})
    record.close()
    assert not [r for r in caplog.records if r.name.startswith("tandem")]
    media = list(tmp_path.glob("wandb/offline-run-*/files/media/images/**/*.png"))
    sheets = [p for p in media if p.parent.name == "pictures"]
    assert sorted(p.name.split("_")[0] for p in sheets) == ["eval", "sampled"]


class Clearing:
    """A mirror that empties what it is given."""

    def open(self, run):
        pass

    def write(self, iteration, metrics):
        metrics.clear()

    def samples(self, iteration, rows):
        for row in rows:
            row.clear()

    def close(self):
        pass


class Keeping(Clearing):
    def write(self, iteration, metrics):
        self.metrics = dict(metrics)

    def samples(self, iteration, rows):
        self.rows = [dict(row) for row in rows]


def test_a_mirror_that_writes_on_its_arguments_changes_them_for_no_other(tmp_path):
    mirrors = Mirrors([Clearing(), after := Keeping()])
    mirrors.open(None)
    metrics, rows = {"reward/mean": 1.0}, [{"kind": "greedy"}]
    mirrors.write(0, metrics)
    mirrors.samples(0, rows)
    assert after.metrics == metrics == {"reward/mean": 1.0}
    assert after.rows == rows == [{"kind": "greedy"}]
