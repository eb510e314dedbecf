import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import wandb

from tandem.record import jsonl
from tandem.record.run_record import RunRecord
from tandem.record.wandb_mirror import Wandb

pytestmark = pytest.mark.system


class Refuses(BaseHTTPRequestHandler):
    """A server that is there and lets nobody in."""

    def do_GET(self) -> None:
        self.reply()

    def do_POST(self) -> None:
        self.reply()

    def reply(self) -> None:
        self.send_response(401)
        self.end_headers()

    def log_message(self, *args) -> None:
        """Be quiet."""


@pytest.fixture
def client(tmp_path, monkeypatch):
    """A client that knows of no settings, credentials or runs of the user's."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    wandb.teardown()
    yield monkeypatch
    wandb.teardown()


def train(folder, mirror: Wandb, iterations: int = 3) -> tuple[list[dict], float]:
    """A run that logs and does nothing else: its lines, and the seconds until its first one."""
    record = RunRecord(folder, mirrors=[mirror], choices={"algorithm": "grpo", "seed": 0})
    record.begin("", seed=0, command=["train.py"])
    start = time.perf_counter()
    record.open(0)
    delay = time.perf_counter() - start
    for i in range(iterations):
        record.write(i, {"reward/mean": i / 3, "samples": 8 * i}, {"time/total": 1.0})
    record.close()
    return jsonl.read(folder / "metrics.jsonl"), delay


def stored(folder) -> list[dict]:
    """The history that W&B would upload."""
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    records = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return [r for r in records if r.get("type") == "history"]


def warnings(caplog) -> list[str]:
    """What a user of ours is told."""
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
    assert len(stored(tmp_path / "with")) == 3


def test_a_server_that_lets_nobody_in_leaves_the_run_offline(tmp_path, client, caplog):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    client.setenv("WANDB_API_KEY", "0" * 40)
    lines, _ = train(tmp_path / "run", Wandb(project="p"))
    server.shutdown()
    assert len(lines) == len(stored(tmp_path / "run")) == 3
    assert warnings(caplog)[0].startswith("W&B does not start a run (")


def test_nobody_is_asked_when_the_user_is_not_logged_in(tmp_path, client, caplog):
    client.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    train(tmp_path / "run", Wandb(project="p"))
    assert warnings(caplog) == []
    assert len(stored(tmp_path / "run")) == 3


def test_a_login_in_netrc_counts(tmp_path, client, caplog):
    (tmp_path / ".netrc").write_text(f"machine 127.0.0.1 login user password {'0' * 40}\n")
    client.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    train(tmp_path / "run", Wandb(project="p"))
    assert "does not answer" in warnings(caplog)[0]


def test_two_starts_of_a_run_are_one_run(tmp_path, client):
    client.setenv("WANDB_MODE", "offline")
    train(tmp_path / "run", Wandb(project="p"))
    train(tmp_path / "run", Wandb(project="p"))
    files = list((tmp_path / "run").glob("wandb/offline-run-*/*.wandb"))
    assert len({file.name for file in files}) == 1


def test_a_mode_that_is_none_is_refused():
    with pytest.raises(ValueError, match="auto, online or offline, not 'onlin'"):
        Wandb(project="p", mode="onlin")
