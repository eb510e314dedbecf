"""Whole runs with a failing reward server: lost scores are counted, and nothing else is lost."""

import json
import threading
import time
from functools import partial

import pytest
from faulty_server import drips, half_json, hangs_up, huge, says, serving, slow
from ladder import FEW

import tandem
from tandem.launch.stops import stops
from tandem.reward_server.scoring import make_scorer
from tandem.rewards import Reward, Rewards
from tandem.rewards.serialization import decode, encode_numbers
from tandem.rewards.text import target_length
from tandem.settings.guards import Stop
from tandem.stop import STOPPED, command_to_resume

pytestmark = pytest.mark.system
TOKEN = "canary-token-e5b8"
SAMPLES = 16  # of an iteration
RUN = (
    *FEW,
    "warm_start=null", "prompts_per_step=4", "group_size=4", "evaluation.every=null",
    "checkpoints.every=100", "guards.no_signal=99", "reward=http",
    "reward.http.function.limits.timeout=2", "reward.http.function.limits.deadline=3",
    "reward.http.function.limits.max_reply_bytes=65536", "reward.http.function.retries.count=0",
    "reward.http.function.breaker.failures=99",
)  # fmt: skip
OWN = make_scorer(Rewards({"target_length": Reward(partial(target_length, target=5))}))


def right(handler, body):
    rows = decode(handler.headers["Content-Type"], body)
    handler.reply(200, encode_numbers([row.id for row in rows], OWN(rows)))


def wrong_ids(handler, body):
    """Wrong ids for all rows."""
    rows = decode(handler.headers["Content-Type"], body)
    handler.reply(200, encode_numbers([f"x{row.id}" for row in rows], OWN(rows)))


def one_lost(handler, body):
    """Two rows come back with the same id, so one has two scores and another none."""
    rows = decode(handler.headers["Content-Type"], body)
    ids = [row.id for row in rows]
    handler.reply(200, encode_numbers([ids[1], *ids[1:]], OWN(rows)))


def train(folder, url, *overrides):
    tandem.train(*RUN, f"run_dir={folder}", f"reward.http.function.url={url}", *overrides)
    return column(folder)


def column(folder, name="reward/missing"):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line.get(name) for line in lines if "reward/missing" in line]


FAULTS = {
    "500": says("", 500), "hangs up": hangs_up, "half a JSON": half_json, "slow": slow(60),
    "drip": drips, "wrong ids": wrong_ids, "1 GB": huge(),
}  # fmt: skip


def test_a_run_goes_on_through_every_fault_with_counts(tmp_path, monkeypatch, capfd, caplog):
    monkeypatch.setenv("TANDEM_REWARD_TOKEN", TOKEN)
    with serving(behaviour=right) as server:
        server.script.extend([right, *FAULTS.values(), right, one_lost])
        count = len(server.script)
        train(tmp_path, server.url, "guards.max_missing_rewards=1", f"iterations={count}")
        assert len(server.seen) == count
        assert {headers["Authorization"] for *_, headers, _ in server.seen} == {f"Bearer {TOKEN}"}
    lost = [0, *[SAMPLES] * len(FAULTS), 0, 2]
    assert column(tmp_path) == [count / SAMPLES for count in lost]
    assert column(tmp_path, "reward/faults") == [count or None for count in lost]
    moved = [norm > 0 for norm in column(tmp_path, "optim/grad_norm")]
    assert moved == [count < SAMPLES for count in lost]
    said = caplog.text + "".join(capfd.readouterr())
    assert f"{SAMPLES} x http: {server.url}/score: 500 Internal Server Error" in said
    assert "1 x http: the reply has two scores for it" in said
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert TOKEN.encode() not in written
    assert TOKEN not in said
    assert "token_env: TANDEM_REWARD_TOKEN\n" in (tmp_path / "config.yaml").read_text()


def test_a_server_that_comes_back_is_asked_again_without_a_restart(tmp_path):
    folder = tmp_path / "run"
    with serving(behaviour=right) as first:
        port = first.server_address[1]
        ended = threading.Event()

        def replaced():
            wait_for_lines(folder, 2)
            first.shutdown()
            first.server_close()
            wait_for_lines(folder, 5)
            with serving(port, right) as second:
                ended.wait(60)
                assert second.seen

        thread = threading.Thread(target=replaced)
        thread.start()
        missing = train(
            folder, first.url, "guards.max_missing_rewards=1", "iterations=14",
            "reward.http.function.retries.count=1", "reward.http.function.retries.wait=0.4",
            "reward.http.function.breaker.failures=2", "reward.http.function.breaker.pause=0.2",
        )  # fmt: skip
        ended.set()
        thread.join()
    changes = [one for one, before in zip(missing, [None, *missing], strict=False) if one != before]
    assert changes == [0, 1, 0]


def wait_for_lines(folder, count):
    path = folder / "metrics.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        time.sleep(0.01)


def test_too_many_missing_scores_stop_the_run_with_their_reasons(tmp_path):
    with serving(behaviour=right) as server:
        server.script.extend([right, one_lost])
        with pytest.raises(Stop, match=r"^12% of the samples have no reward \(1 x http: the rep"):
            train(tmp_path, server.url, "iterations=3")
    assert column(tmp_path) == [0]


def test_a_server_that_is_not_there_stops_a_run_with_one_line(tmp_path, free_port, capfd):
    url = f"http://127.0.0.1:{free_port}"
    with pytest.raises(SystemExit) as ended, stops(tmp_path):
        train(tmp_path, url, "iterations=3")
    assert ended.value.code == STOPPED == 3
    said = capfd.readouterr()
    assert said.err.splitlines()[-1] == (
        f"stopped: 100% of the samples have no reward (16 x http: {url}/score: no connection "
        "([Errno 111] Connection refused); see reward.http.function.url), more than "
        "guards.max_missing_rewards=0.1; fix the reward or the data field that it reads"
    )
    assert f"{command_to_resume(tmp_path)} guards.max_missing_rewards=1\n" in said.out
