"""The report while runs continue: it updates, and half-written lines do not break it."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.client import HTTPConnection

import pytest
from written_runs import write_prompts, write_run, write_sweep

from tandem.compare.__main__ import main
from tandem.compare.comparison import Request, compare
from tandem.compare.report import live
from tandem.sweep import status as outcome


def watch(*places):
    return live.Watched(list(map(str, places)), lambda runs: compare(runs, Request()))


def observe(found):
    found._rest = 0.0  # the next request looks again
    return json.loads(found.latest().body)


@contextmanager
def serve(found):
    with live.Server(found, 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


def answer(server, path, host=None):
    port = server.server_address[1]
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{port}"})
    found = connection.getresponse()
    return found.status, found.read().decode()


def grow(run, iteration, value):
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"iteration": iteration, "eval/accuracy": value}) + "\n")


def test_new_lines_and_new_runs_appear(tmp_path):
    write_sweep(tmp_path, {"grpo": [0.5]}, iterations=9)
    found = watch(tmp_path)
    assert [len(v["scores"]) for v in observe(found)["variants"]] == [1]
    grow(tmp_path / "grpo-0", 2, 0.7)
    assert observe(found)["variants"][0]["mean"] == 0.7
    write_run(tmp_path / "rloo-0", [0.0, 0.2], algorithm="rloo")
    assert [v["name"] for v in observe(found)["variants"]] == ["grpo", "rloo"]


def test_a_run_goes_on_until_its_lock_is_free_though_it_writes_nothing(tmp_path):
    write_sweep(tmp_path, {"grpo": [0.5]}, iterations=9)
    found, run = watch(tmp_path), tmp_path / "grpo-0"
    with outcome.lock_folder(run):
        (score,) = observe(found)["variants"][0]["scores"]
        assert (score["running"], score["died"]) == (True, False)
    (score,) = observe(found)["variants"][0]["scores"]
    assert (score["running"], score["died"]) == (False, True)


def test_only_what_changed_is_read_again(tmp_path):
    write_sweep(tmp_path, {"grpo": [0.5, 0.6]})
    found = watch(tmp_path)
    observe(found)
    before = dict(found._known)
    grow(tmp_path / "grpo-1", 2, 0.7)
    observe(found)
    same = {place.name: found._known[place] is before[place] for place in before}
    assert same == {"grpo-0": True, "grpo-1": False}


@pytest.mark.parametrize("broken", ["config.yaml", "manifest.json", "metrics.jsonl"])
def test_a_run_that_is_half_written_is_named_and_the_others_stay(tmp_path, broken):
    write_sweep(tmp_path, {"grpo": [0.5, 0.6]})
    (tmp_path / "grpo-1" / broken).write_text('{"seed": \n')
    data = observe(watch(tmp_path))
    assert [len(v["scores"]) for v in data["variants"]] == [1]
    assert "grpo-1" in data["meta"]


def test_a_torn_line_waits_for_its_end(tmp_path):
    write_sweep(tmp_path, {"grpo": [0.5]})
    found = watch(tmp_path)
    with (tmp_path / "grpo-0" / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 2, "eval/accu')
        file.flush()
        assert observe(found)["variants"][0]["mean"] == 0.5
        file.write('racy": 0.9}\n')
    assert observe(found)["variants"][0]["mean"] == 0.9


def test_before_the_first_line_it_says_what_it_waits_for(tmp_path):
    found = watch(tmp_path / "nothing yet")
    assert "there is no run in it" in observe(found)["headline"]
    write_run(tmp_path / "nothing yet" / "run", [0.0, 0.3])
    assert observe(found)["variants"][0]["mean"] == 0.3


def test_looking_takes_a_tenth_of_a_core_at_most(tmp_path):
    write_sweep(tmp_path, {"grpo": [0.5]})
    found = watch(tmp_path)
    found.latest()
    grow(tmp_path / "grpo-0", 2, 0.7)
    assert found._rest > 0 and json.loads(found.latest().body)["variants"][0]["mean"] == 0.5


def test_the_page_may_ask_its_own_server_and_nobody_else(tmp_path):
    write_sweep(tmp_path, {"grpo": [0.5]})
    with serve(watch(tmp_path)) as server:
        status, page = answer(server, "/")
        assert status == 200 and "connect-src 'self'" in page
        status, body = answer(server, "/data.json")
        assert status == 200
        assert answer(server, f"/data.json?tag={json.loads(body)['tag']}") == (204, "")
        assert answer(server, "/../../etc/passwd")[0] == 404
        assert server.server_address[0] == "127.0.0.1"


def test_a_place_without_runs_hides_no_other(tmp_path):
    write_sweep(tmp_path / "here", {"grpo": [0.5]})
    found = watch(tmp_path / "here", tmp_path / "not yet")
    data = observe(found)
    assert [v["name"] for v in data["variants"]] == ["grpo"]
    assert f"{tmp_path / 'not yet'}: there is no run in it" in data["meta"]
    write_run(tmp_path / "not yet" / "run", [0.0, 0.3], algorithm="rloo")
    data = observe(found)
    assert [v["name"] for v in data["variants"]] == ["grpo", "rloo"]
    assert "there is no run" not in data["meta"]


def test_prompts_of_an_evaluation_and_a_selection_are_news(tmp_path):
    write_sweep(tmp_path, {"grpo": [0.5]})
    found = watch(tmp_path)
    tags = [observe(found)["tag"]]
    write_prompts(tmp_path / "grpo-0", [0.0, 1.0])
    tags.append(observe(found)["tag"])
    (tmp_path / "selection.json").write_text("{}")
    tags.append(observe(found)["tag"])
    assert len(set(tags)) == 3 and observe(found)["tag"] == tags[-1]


def test_a_bug_is_told_to_whoever_looks_and_printed_once(tmp_path, capsys):
    """The server keeps going, since the next line of a run may resolve it."""
    write_sweep(tmp_path, {"grpo": [0.5]}, iterations=9)

    def broken(runs):
        if runs[0].iterations < 2:
            raise KeyError("nobody knows")
        return compare(runs, Request())

    found = live.Watched([str(tmp_path)], broken)
    with serve(found) as server:
        for path in ("/data.json", "/"):
            found._rest = 0.0
            assert answer(server, path) == (500, "KeyError: 'nobody knows'")
        said = capsys.readouterr().err
        assert said.count("Traceback") == 1 and "in broken" in said
        grow(tmp_path / "grpo-0", 2, 0.7)
        found._rest = 0.0
        assert answer(server, "/data.json")[0] == 200


def test_a_reader_that_leaves_is_no_error_and_all_else_is_printed(tmp_path, capsys):
    with live.Server(watch(tmp_path), 0) as server:
        for error in (BrokenPipeError(), ConnectionResetError(), RuntimeError("of ours")):
            try:
                raise error
            except (OSError, RuntimeError):
                server.handle_error(None, ("127.0.0.1", 1))
    said = capsys.readouterr().err
    assert said.count("Traceback") == 1 and "RuntimeError: of ours" in said


@pytest.mark.parametrize("host", ["evil.example:80", "evil.example", "127.0.0.1.evil.example:80"])
def test_a_name_that_points_here_is_refused(tmp_path, host):
    """Otherwise any page that is open in the browser could read the runs (DNS rebinding)."""
    write_sweep(tmp_path, {"grpo": [0.5]})
    with serve(watch(tmp_path)) as server:
        status, said = answer(server, "/data.json", host=host)
        assert status == 403 and "eval/accuracy" not in said


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "localhost:8000"])
def test_its_own_machine_is_served_also_without_the_port_that_clients_leave_out(tmp_path, host):
    """As they do for port 80."""
    write_sweep(tmp_path, {"grpo": [0.5]})
    with serve(watch(tmp_path)) as server:
        assert answer(server, "/data.json", host=host)[0] == 200


@pytest.mark.system
def test_control_c_ends_it(tmp_path):
    write_sweep(tmp_path, {"grpo": [0.5]})
    command = [sys.executable, "-m", "tandem.compare", str(tmp_path), "serve=true"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests started by a shell in the background ignore Ctrl-C, and so do their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout.readline().startswith("http://127.0.0.1:")
    os.kill(process.pid, signal.SIGINT)
    assert process.communicate(timeout=60) == ("ended\n", "")
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["serve=yes"], "serve=yes: give serve=true, or a port such as serve=8000"),
        (["serve=true", "out=x"], "cannot be combined with out: run that separately"),
    ],
)
def test_what_cannot_be_served_is_one_line(tmp_path, capsys, options, line):
    with pytest.raises(SystemExit) as exit:
        main([str(tmp_path), *options])
    assert exit.value.code == 2 and line in capsys.readouterr().err
