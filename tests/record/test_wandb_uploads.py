"""The server's copy of a resumed run: every point once, however it was uploaded."""

import subprocess
import sys

import pytest
import wandb
from wandb_server import serving

from tandem.record.run_record import RunRecord
from tandem.record.wandb_mirror import Wandb

pytestmark = pytest.mark.system


@pytest.fixture
def server(tmp_path, monkeypatch):
    wandb.teardown()
    with serving() as found:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("WANDB_BASE_URL", found.url)
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        monkeypatch.delenv("WANDB_MODE", raising=False)
        yield found
        wandb.teardown()


def start(folder, first: int, end: int, mode: str, last: dict | None = None) -> None:
    """A start of a run that went back to a checkpoint at `first`. last: what it ends with."""
    record = RunRecord(folder, mirrors=[Wandb(project="p", mode=mode)])
    record.begin("seed: 0\n", seed=0, command=["train.py"], resumed=first > 0)
    record.cut(first)
    record.open(first)
    for i in range(first, end):
        record.write(i, {"reward/mean": i / 8}, {"time/total": 2.0 * i})
    if last is not None:
        record.write(end, last, {})
    record.close()


def upload(folder) -> str:
    """The command of docs/wandb.md."""
    sync = f"find {folder} -name '*.wandb' -exec {sys.executable} -m wandb sync {{}} +"
    done = subprocess.run(
        sync, shell=True, capture_output=True, text=True, timeout=120, cwd=folder.parent
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def points(server) -> list[tuple[int, float]]:
    """The points of the only run, in the server's order."""
    (history,) = server.histories.values()
    rows = [history[line] for line in sorted(history)]
    assert [row["_step"] for row in rows] == [row["iteration"] for row in rows]
    return [(row["iteration"], row["reward/mean"]) for row in rows]


def test_what_was_kept_offline_is_uploaded_once_before_and_after_a_run_went_on(tmp_path, server):
    folder = tmp_path / "run"
    start(folder, 0, 4, "offline")
    upload(folder)
    assert points(server) == [(i, i / 8) for i in range(4)]
    assert "Skipped 1 synced run(s)" in upload(folder)
    start(folder, 2, 6, "offline")
    assert "Syncing 1 run(s)" in upload(folder)
    assert points(server) == [(i, i / 8) for i in range(6)]


def test_a_run_that_goes_on_online_sends_what_the_server_lacks(tmp_path, server):
    folder = tmp_path / "run"
    start(folder, 0, 2, "offline")  # and never uploaded
    start(folder, 2, 4, "online")
    assert points(server) == [(i, i / 8) for i in range(4)]
    wandb.teardown()
    start(folder, 2, 6, "online")
    assert points(server) == [(i, i / 8) for i in range(6)]
    assert not [*folder.glob("wandb/offline-run-*")]


@pytest.mark.parametrize(("mode", "has"), [("online", False), ("offline", True)])
def test_the_last_row_of_a_run_that_is_extended_stays_as_it_was_sent_online(
    tmp_path, server, mode, has
):
    folder = tmp_path / "run"
    start(folder, 0, 2, mode, last={"eval/accuracy": 0.5})
    wandb.teardown()
    start(folder, 2, 4, mode)
    if mode == "offline":
        upload(folder)
    (history,) = server.histories.values()
    rows = [history[line] for line in sorted(history)]
    assert [row["iteration"] for row in rows] == [0, 1, 2, 3]
    assert ("reward/mean" in rows[2]) == has
