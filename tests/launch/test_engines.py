"""`tandem engines`: servers are started with the right arguments, watched, and ended."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tandem.config import ConfigError, build, check, compose
from tandem.launch import engine_processes
from tandem.launch.engine_options import Servers
from tandem.launch.engine_plan import compose_run, plan
from tandem.launch.engine_processes import EngineProcess, Watcher
from tandem.launch.engines import main, make_help, read
from tandem.launch.own_engines import devices_of, own_engines
from tandem.policies.engines.addresses import AddressFile, find_urls
from tandem.policies.engines.vllm_server import VllmServer
from tandem.settings.settings import Devices
from tandem.stop import STOPPED, EngineUnavailable

FAKE = Path(__file__).parent / "fake_vllm.py"
RUN = (
    "model=hf", "model.path=MODEL", "data=sort_letters", "rollout.max_new_tokens=6",
    "rollout.max_prompt_tokens=20",
)  # fmt: skip
LORA = "model.lora={r: 12, alpha: 12, target_modules: all-linear}"
SOON, LATE = 20.0, 120.0  # seconds; of a command that imports torch on a busy machine
SLOW = pytest.mark.slow


def write_fake(program: Path) -> None:
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IEXEC)


def make_plan(tmp_path, *words, run=RUN):
    servers, overrides = read([*words, *run, f"cache_dir={tmp_path}"])
    assert servers.devices
    return plan(servers, compose_run(overrides))


@pytest.mark.parametrize(
    ("gpus", "visible", "left_out"),
    [
        ("0-2", "2,3", "leaves out 0,1;"), ("2-3", "2, 3", ""), ("0-1", None, ""),
        ("cpu:2", "", ""),
    ],
)  # fmt: skip
def test_gpus_that_the_shell_hides_are_named(monkeypatch, gpus, visible, left_out):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    said = Servers(gpus=gpus).describe_hidden()
    assert left_out in said and bool(said) == bool(left_out)


def follows(words, flag):
    """The value behind a flag that occurs once."""
    assert words.count(flag) == 1
    return dict(pairwise(words))[flag]


def test_a_server_is_started_with_what_the_run_needs_and_nothing_is_typed_twice(tmp_path):
    run = (*RUN, LORA, "rollout.engine.sleeps=true", "rollout.engine.concurrency=64")
    processes, folder = make_plan(
        tmp_path, "gpus=4-7", "tensor_parallel=2", "program=vllm", run=run
    )
    first = processes[0]
    assert folder == tmp_path / "engine"
    assert first.words[:3] == ["vllm", "serve", "MODEL"]
    said = {
        "--max-model-len": "26", "--max-lora-rank": "16", "--max-num-seqs": "64",
        "--logprobs-mode": "processed_logprobs", "--generation-config": "vllm",
        "--dtype": "float32", "--gpu-memory-utilization": "0.9", "--tensor-parallel-size": "2",
        "--port": "8000",
    }  # fmt: skip
    assert {flag: follows(first.words, flag) for flag in said} == said
    assert {"--enable-lora", "--enable-sleep-mode", "--enable-scale-out"} < set(first.words)
    assert [p.environment["CUDA_VISIBLE_DEVICES"] for p in processes] == ["4,5", "6,7"]
    assert first.environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert [p.url for p in processes] == ["http://127.0.0.1:8000", "http://127.0.0.1:8001"]


def test_flags_are_split_as_a_shell_splits_them(tmp_path):
    flags = """flags=--seed 3 --hf-overrides '{"rope_theta": 1e6}'"""
    (process,), _ = make_plan(tmp_path, "gpus=0", "program=vllm", flags)
    assert process.words[-4:] == ["--seed", "3", "--hf-overrides", '{"rope_theta": 1e6}']


def test_a_server_has_room_for_episodes_which_are_longer_than_an_answer(tmp_path):
    (process,), _ = make_plan(
        tmp_path, "gpus=0", "program=vllm", run=(*RUN, "environment=hilo", "data=hilo")
    )
    assert follows(process.words, "--max-model-len") == "auto"  # what its memory holds


REFUSED = {
    ("model=hf",): "gpus is missing",
    ("--gpus", "0"): "^--gpus: write gpus=..., without dashes$",
    ("gpus=4-x",): "gpus=4-x: expected distinct GPU numbers such as 4-7",
    ("gpus=cpu:0",): "gpus=cpu:0: expected .*, or cpu:2$",
    ("gpus=0,1,1",): "distinct GPU numbers",
    ("gpus=0-2", "tensor_parallel=2"): "multiple of tensor_parallel=2",
    ("gpus=0", "port=99999"): "port=99999: must be between 0",
    ("gpus=0,1", "program=vllm", "port=65535"): "port=65535: 2 servers need ports up to 65536",
    ("gpus=0", "restarts=many"): "restarts=many: expected a number",
    ("gpus=0", "program=vllm", "rollout=local"): "uses no server; set rollout=vllm_server",
    ("gpus=0", "program=vllm", "model.path=null"): "model.path=null: engines serve a model",
    ("gpus=0", "program=vllm", "model.path='--config=x'"): "model.path=--config=x: .* for a flag",
    ("gpus=0", "program=vllm", "rollout.engine.model='-x'"): "rollout.engine.model=-x: .* a flag",
    ("gpus=0", "program=vllm", LORA, "warm_start=['algorithm=sft']"): "set continue_from=RUN",
}


@pytest.mark.parametrize("gpus", ["0,1x", "6-4,0", "0,4-7-9", "0,", ",0", "0,cpu", "-1", "4-"])
def test_no_part_of_the_gpus_is_dropped(gpus):
    with pytest.raises(ConfigError, match=f"^gpus={gpus}: expected distinct GPU numbers"):
        _ = Servers(gpus=gpus).devices


def test_a_space_after_a_comma_changes_nothing():
    assert Servers(gpus="0, 1,4-5").devices == [("0",), ("1",), ("4",), ("5",)]


def test_flags_with_an_open_quote_are_refused_in_one_line(tmp_path):
    with pytest.raises(ConfigError) as refused:
        make_plan(tmp_path, "gpus=0", "program=vllm", "flags=--chat-template 'a b")
    assert str(refused.value) == (
        "flags=--chat-template 'a b: No closing quotation; quote the flags as for a shell"
    )


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_started_is_refused_in_one_line(words, tmp_path):
    with pytest.raises(ValueError, match=REFUSED[words]):
        make_plan(tmp_path, *words[:1], run=(*RUN, *words[1:]))


def test_a_missing_engine_is_told_with_the_key_that_names_one(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("VLLM_HOME", raising=False)
    with pytest.raises(ConfigError, match="vllm is not installed here; set VLLM_HOME to its"):
        make_plan(tmp_path, "gpus=0")
    with pytest.raises(ConfigError, match="gpus=x: expected distinct GPU numbers"):
        plan(Servers(gpus="x"), compose_run(RUN))


@pytest.mark.parametrize("word", ["program={}/log/vllm", "rollout.engine.folder={}/log/engine"])
def test_a_program_or_a_folder_that_cannot_be_is_told_in_one_line(word, tmp_path, capsys):
    (tmp_path / "log").write_text("a file, not a folder")
    words = ("gpus=cpu", "program=vllm", f"cache_dir={tmp_path}", word.format(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main([*words, *RUN])
    assert ended.value.code == STOPPED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"stopped: [Errno 20] Not a directory: '{tmp_path}/log/")
    assert "; check program=" in line and " and rollout.engine.folder=" in line


def test_help_explains_every_key_and_the_address_auto():
    said = make_help()
    assert all(f"  {name}=" in said for name in Servers.__slots__)
    assert "rollout.engine.url=auto" in said


# Engines of a run's own.


def colocated(tmp_path, *words):
    own = ("rollout=vllm_colocated", f"run_dir={tmp_path}", "trainer.accelerator=cpu")
    return compose([*RUN, *own, *words])


def test_a_run_starts_engines_that_sleep_on_its_own_devices_and_ends_them(tmp_path, monkeypatch):
    program = tmp_path / "home" / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    write_fake(program)
    monkeypatch.setenv("VLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FAKE_VLLM", str(tmp_path / "starts"))
    cfg = colocated(tmp_path)
    with own_engines(cfg, check(cfg).trainer):
        (url,) = build(cfg.rollout).engine.urls
        (start,) = start_engines(tmp_path)
        assert url.endswith(follows(start["words"], "--port"))
        assert "--enable-sleep-mode" in start["words"]
        assert all(map(lives, start["pids"]))
    assert_gone(start["pids"])
    assert not list((tmp_path / "engine").glob("servers-*.json"))


def test_a_run_whose_engines_end_is_told_so_and_does_not_wait(tmp_path, monkeypatch, caplog):
    """A later rank reads the same file."""
    program = tmp_path / "home" / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho no room for the model; exit 1\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("VLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tandem.launch.own_engines.RESTARTS", 0)
    cfg, started = colocated(tmp_path), time.monotonic()
    with own_engines(cfg, check(cfg).trainer):
        with pytest.raises(ValueError, match="the engines have ended") as refused:
            _ = build(cfg.rollout).engine.urls
        (log,) = (tmp_path / "engine").glob("server-*.log")
    assert str(refused.value) == (
        "rollout.engine.starts=true: the engines have ended: server 0 ended with code 1, after 0 "
        f"restarts; see {log}"
    )
    assert time.monotonic() - started < SOON
    assert f"waiting for engines: see {tmp_path}/engine/server-*.log" in caplog.text
    assert not list((tmp_path / "engine").glob("servers-*.json"))


def test_engines_of_a_run_that_are_slow_are_told_with_their_log_and_the_key(tmp_path):
    AddressFile(folder=tmp_path, urls=["http://a:1"]).write(ready=False)
    own = build(colocated(tmp_path, f"rollout.engine.folder={tmp_path}").rollout).engine
    with pytest.raises(ValueError, match="engines are not up") as refused:
        _ = replace(own, patience=0.01).urls
    assert str(refused.value) == (
        f"rollout.engine.url=auto: engines are not up in {tmp_path} within "
        f"rollout.engine.patience=0.01 s; see {tmp_path}/server-*.log, or raise "
        "rollout.engine.patience"
    )


def test_a_folder_that_cannot_be_ends_a_run_before_its_engines_start(tmp_path, monkeypatch):
    program = tmp_path / "home" / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    write_fake(program)
    monkeypatch.setenv("VLLM_HOME", str(tmp_path / "home"))
    cfg = colocated(tmp_path, f"rollout.engine.folder={program}/engine")
    with pytest.raises(NotADirectoryError), own_engines(cfg, check(cfg).trainer):
        pass


def test_a_run_leaves_engines_alone_that_others_start(tmp_path):
    cfg = colocated(tmp_path, "rollout.engine.starts=false")
    with own_engines(cfg, check(cfg).trainer):
        assert not (tmp_path / "engine").exists()


def test_engines_that_others_start_are_asked_for_with_the_folder_of_the_run(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.chdir(tmp_path)
    words = ("rollout.engine.starts=false", "rollout.engine.patience=0.01", "run_dir=runs/one")
    own = build(colocated(tmp_path, *words).rollout).engine
    where = f"rollout.engine.folder={tmp_path}/runs/one/engine"
    with pytest.raises(ValueError, match=f"start them with `tandem engines {where}` and the model"):
        _ = own.urls
    assert caplog.text.strip().endswith(where)
    run = (*RUN, "rollout=vllm_colocated", where)
    _, folder = make_plan(tmp_path, "gpus=0", "program=vllm", run=run)
    AddressFile(folder=folder, urls=["http://a:1"]).write(ready=True)
    assert own.urls == ["http://a:1"]


def test_several_nodes_are_told_to_share_a_folder(tmp_path):
    cfg = colocated(tmp_path)
    nodes = replace(check(cfg).trainer, num_nodes=2)
    with (
        pytest.raises(ConfigError, match=r"give all of them the same rollout\.engine\.folder"),
        own_engines(cfg, nodes),
    ):
        pass


@pytest.mark.parametrize(
    ("accelerator", "devices", "seen", "said"),
    [
        ("gpu", 2, None, "0,1"),
        ("gpu", [3, 5], None, "3,5"),
        ("auto", "auto", None, "0,1,2,3,4,5,6,7"),
        ("cpu", 2, None, "cpu"),
        ("gpu", 1, "6", "6"),  # as a sweep assigns it
        ("gpu", [1], "4, GPU-8f2c-a1", "GPU-8f2c-a1"),
    ],
)
def test_every_device_of_the_run_has_a_server(accelerator, devices, seen, said, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if seen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    trainer = Devices(
        accelerator=accelerator, devices=devices, num_nodes=1, strategy="auto", precision="32-true"
    )
    assert devices_of(trainer) == said
    if said != "cpu":
        assert [*Servers(gpus=said).devices] == [(name,) for name in said.split(",")]


@pytest.mark.parametrize(
    ("rollout", "backend"), [("vllm_server", "nccl"), ("vllm_colocated", "ipc")]
)
def test_a_server_on_the_gpu_of_the_trainer_receives_weights_by_ipc(
    rollout, backend, tmp_path, monkeypatch
):
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    run = (*RUN, f"rollout={rollout}", "rollout.engine.transfer=broadcast", f"run_dir={tmp_path}")
    (process,), _ = make_plan(tmp_path, "gpus=0", "program=vllm", run=run)
    assert json.loads(follows(process.words, "--weight-transfer-config")) == {"backend": backend}


def test_a_folder_in_the_home_directory_is_given_as_an_engine_reads_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    words = {"'~/model'": f"{tmp_path}/model", "'~/none'": "~/none", "org/name": "org/name"}
    for path, served in words.items():
        run = (*RUN, f"model.path={path}")
        (process,), _ = make_plan(tmp_path, "gpus=0", "program=vllm", run=run)
        assert follows(process.words, "serve") == served


def test_pickles_are_read_only_where_the_user_says_so(tmp_path, monkeypatch):
    monkeypatch.delenv("VLLM_ALLOW_INSECURE_SERIALIZATION", raising=False)
    run = (
        *RUN,
        "rollout=vllm_colocated",
        "rollout.engine.transfer=broadcast",
        f"run_dir={tmp_path}",
    )
    with pytest.raises(ValueError, match="whoever reaches its port can run code; set VLLM_ALLOW"):
        make_plan(tmp_path, "gpus=0", "program=vllm", run=run)


COLOCATED = {
    ("rollout.staleness=1",): "sleeps=true releases the memory for it",
    ("rollout.engine.url=http://127.0.0.1:1",): "starts its servers; leave url=auto",
}


@pytest.mark.parametrize("words", COLOCATED)
def test_what_colocated_engines_cannot_do_is_refused(words, tmp_path):
    with pytest.raises(ConfigError, match=COLOCATED[words]):
        check(colocated(tmp_path, *words))


# The addresses.


def test_addresses_are_found_once_every_server_in_the_folder_is_up(tmp_path, monkeypatch):
    near = AddressFile(folder=tmp_path, urls=["http://a:1"])
    near.write(ready=True)
    far = tmp_path / "servers-elsewhere-1.json"
    said = {"host": "elsewhere", "pid": 1, "urls": ["http://b:1", "http://b:2"]}
    far.write_text(json.dumps({**said, "ready": False}))
    with pytest.raises(ValueError, match=r"url=auto: engines are not up in .* within .*=0 s"):
        find_urls(tmp_path, patience=0)
    threading.Timer(0.2, lambda: far.write_text(json.dumps({**said, "ready": True}))).start()
    found = find_urls(tmp_path, patience=SOON)
    assert sorted(found) == ["http://a:1", "http://b:1", "http://b:2"]


def test_a_run_with_url_auto_asks_the_servers_that_stand_there(tmp_path):
    AddressFile(folder=tmp_path, urls=["http://a:1", "http://b:1"]).write(ready=True)
    option = VllmServer(url="auto", folder=str(tmp_path))
    assert list(option.urls) == ["http://a:1", "http://b:1"]


def test_what_a_dead_host_left_is_no_address_after_a_minute(tmp_path, caplog):
    AddressFile(folder=tmp_path, urls=["http://a:1"]).write(ready=True)
    far = tmp_path / "servers-elsewhere-1.json"
    far.write_text(json.dumps({"host": "elsewhere", "pid": 1, "urls": ["x"], "ready": False}))
    os.utime(far, (time.time() - 61, time.time() - 61))
    assert find_urls(tmp_path, patience=0) == ["http://a:1"]
    assert f"{far} is ignored" in caplog.text


def test_an_address_that_cannot_be_written_leaves_no_part_of_it(tmp_path):
    file = AddressFile(folder=tmp_path, urls=["http://a:1"])
    file.path.mkdir()  # as if another program had taken the name
    with pytest.raises(IsADirectoryError):
        file.write(ready=True)
    assert list(tmp_path.iterdir()) == [file.path]


def test_a_touched_address_stays_one(tmp_path):
    file = AddressFile(folder=tmp_path, urls=["http://a:1"])
    file.write(ready=True)
    os.utime(file.path, (0, 0))
    file.touch()
    assert find_urls(tmp_path, patience=0) == ["http://a:1"]


def test_a_run_that_starts_its_engines_asks_no_others(tmp_path):
    said = {"host": socket.gethostname(), "pid": os.getppid(), "urls": ["http://a:1"]}
    (tmp_path / "servers-here-1.json").write_text(json.dumps({**said, "ready": True}))
    assert find_urls(tmp_path, patience=0) == ["http://a:1"]
    with pytest.raises(ValueError, match="have not written an address"):
        find_urls(tmp_path, patience=0, own=True)
    AddressFile(folder=tmp_path, urls=["http://b:1"]).write(ready=True)
    assert find_urls(tmp_path, patience=0, own=True) == ["http://b:1"]


def test_a_later_rank_asks_the_engines_of_its_first(tmp_path, monkeypatch):
    said = {"host": socket.gethostname(), "pid": os.getppid(), "urls": ["http://a:1"]}
    (tmp_path / "servers-here-1.json").write_text(json.dumps({**said, "ready": True, "fault": ""}))
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert find_urls(tmp_path, patience=0, own=True) == ["http://a:1"]


def test_what_a_killed_command_left_is_no_address(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    said = {"host": socket.gethostname(), "pid": gone.pid, "urls": ["http://a:1"], "ready": True}
    (tmp_path / "servers-here-1.json").write_text(json.dumps(said))
    with pytest.raises(ValueError, match="engines have not written an address"):
        find_urls(tmp_path, patience=0)
    assert not list(tmp_path.iterdir())


# The processes.


class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()


@pytest.fixture
def port():
    """The first of two free ports."""
    with socket.socket() as first, socket.socket() as second:
        while True:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            second.bind(("127.0.0.1", port + 1))
            return port


def fake(root: Path, ports, *flags) -> Watcher:
    """Two servers; the second may be given flags."""
    said = []
    servers = [
        EngineProcess(
            words=[sys.executable, str(FAKE), "--port", str(ports + place), *(flags * place)],
            environment={"FAKE_VLLM": str(root / "starts")},
            url=f"http://127.0.0.1:{ports + place}",
            log=root / f"log-{place}",
        )
        for place in (0, 1)
    ]
    return Watcher(servers=servers, startup=SOON, restarts=1, say=said.append)


def look_until(watcher, holds):
    end = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < end, [server.tail() for server in watcher.servers]
        watcher.look()
        time.sleep(0.02)


def start_engines(root):
    file = root / "starts"
    return [json.loads(x) for x in file.read_text().splitlines()] if file.is_file() else []


def lives(pid):
    """Whether a process runs; a zombie does not."""
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def assert_gone(pids):
    """A killed process may take a moment to disappear."""
    end = time.monotonic() + SOON
    left = list(pids)
    while left:
        assert time.monotonic() < end, left
        left = [pid for pid in left if lives(pid)]


def test_a_server_that_ends_is_started_again_and_all_end_with_what_they_started(tmp_path, port):
    watcher = fake(tmp_path, port)
    watcher.start()
    try:
        look_until(watcher, lambda: watcher.up == 2)
        (first, engine), words = (
            start_engines(tmp_path)[0]["pids"],
            start_engines(tmp_path)[0]["words"],
        )
        os.kill(first, signal.SIGKILL)
        look_until(watcher, lambda: watcher.up == 2 and len(start_engines(tmp_path)) == 3)
        assert start_engines(tmp_path)[2]["words"] == words
        assert_gone([engine])  # it would keep the GPU's memory
    finally:
        watcher.stop()
    assert_gone(pid for start in start_engines(tmp_path) for pid in start["pids"])


def test_a_server_that_never_comes_up_is_given_up_with_its_last_words(tmp_path, port):
    watcher, said = fake(tmp_path, port, "--broken"), []
    watcher.say = said.append
    watcher.start()
    try:
        with pytest.raises(EngineUnavailable) as stopped:
            look_until(watcher, lambda: False)
    finally:
        watcher.stop()
    log = watcher.servers[1].log
    assert str(stopped.value) == f"server 1 ended with code 1, after 1 restarts; see {log}"
    assert f"the end of {log}:\n" in said[-1] and "no room for the model" in said[-1]


def test_a_server_that_falls_silent_is_started_again(tmp_path, port, monkeypatch):
    watcher = fake(tmp_path, port)
    watcher.start()
    try:
        look_until(watcher, lambda: watcher.up == 2)
        for name, value in (("SILENCE", 0.8), ("PROBE", 0.4), ("PROBES", 0.1)):
            monkeypatch.setattr(engine_processes, name, value)
        watcher.servers[0].signal(signal.SIGSTOP)
        look_until(watcher, lambda: watcher.servers[0].restarts == 1)
        look_until(watcher, lambda: watcher.up == 2)
    finally:
        watcher.stop()


def test_a_proxy_of_the_environment_is_no_way_to_a_server(tmp_path, port, monkeypatch):
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port + 1}")  # where nothing listens
    urllib.request.install_opener(None)  # `urlopen` keeps the proxy of its first call
    with HTTPServer(("127.0.0.1", port), Health) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{port}"
        assert EngineProcess(words=[], environment={}, url=url, log=tmp_path / "log").answers()


def test_a_service_that_speaks_no_http_is_no_server(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def greet():
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"SSH-2.0-x\r\n")

        threading.Thread(target=greet, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        server = EngineProcess(words=[], environment={}, url=url, log=tmp_path / "log")
        assert not server.answers()


def test_another_service_on_the_port_is_not_taken_for_the_server(tmp_path, port):
    with HTTPServer(("127.0.0.1", port), Health) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        watcher = fake(tmp_path, port)
        with pytest.raises(EngineUnavailable, match="another process listens on"):
            watcher.start()
        server.shutdown()
    assert not start_engines(tmp_path)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "[::1]"])
def test_a_host_that_cannot_be_asked_has_no_port_that_is_taken(host, tmp_path):
    url = f"http://{host}:1"
    server = EngineProcess(words=[], environment={}, url=url, log=tmp_path / "log")
    assert not server.port_is_taken()


class Command:
    """A running `tandem engines` with two fake servers."""

    def __init__(self, root: Path, ports, *words):
        self.starts, self.folder = root / "starts", root / "engine"
        program = root / "vllm"
        write_fake(program)
        line = (sys.executable, "-m", "tandem", "engines", "gpus=cpu:2", f"program={program}")
        self.process = subprocess.Popen(
            [*line, *RUN, f"cache_dir={root}", f"port={ports}", *words],
            env=os.environ | {"FAKE_VLLM": str(self.starts)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def started(self):
        return start_engines(self.starts.parent)

    def pids(self):
        return [pid for start in self.started() for pid in start["pids"]]

    def wait_for(self, holds):
        end = time.monotonic() + LATE
        while not holds():
            assert time.monotonic() < end, self.started()
            time.sleep(0.05)

    def is_ready(self):
        files = self.folder.glob("servers-*.json")
        return any(json.loads(file.read_text())["ready"] for file in files)

    def are_gone(self):
        return not any(map(lives, self.pids()))


@pytest.fixture
def command(tmp_path, port):
    running = Command(tmp_path, port)
    yield running
    running.process.terminate()
    running.process.wait(LATE)


@SLOW
def test_the_command_ends_its_servers_when_it_is_told_to(command, port):
    command.wait_for(command.is_ready)
    assert find_urls(command.folder, patience=0) == [f"http://127.0.0.1:{port + i}" for i in (0, 1)]
    os.kill(command.started()[0]["pids"][0], signal.SIGKILL)
    command.wait_for(lambda: len(command.started()) == 3)
    command.process.send_signal(signal.SIGUSR1)  # a scheduler's warning to all steps of a job
    os.kill(command.started()[-1]["pids"][0], signal.SIGUSR1)
    command.process.send_signal(signal.SIGTERM)
    said = command.process.communicate(timeout=LATE)[0]
    assert command.process.returncode == 143
    assert "ended with code -9; started again (1 of 3)" in said
    assert command.are_gone()
    assert not list(command.folder.glob("servers-*.json"))


@SLOW
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_second_signal_does_not_wait_for_servers_that_ignore_the_first(tmp_path, port, number):
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored
    command = Command(tmp_path, port, "flags=--stubborn")
    signal.signal(signal.SIGHUP, inherited)
    try:
        command.wait_for(command.is_ready)
        began = time.monotonic()
        command.process.send_signal(number)
        time.sleep(1)
        command.process.send_signal(number)
        said = command.process.communicate(timeout=LATE)[0]
        assert command.process.returncode == 128 + number
        assert time.monotonic() - began < engine_processes.GRACE
        assert said.endswith("stopping all servers; another signal kills them\n")
        assert command.are_gone() and not list(command.folder.glob("servers-*"))
    finally:
        command.process.kill()


@SLOW
def test_a_killed_command_leaves_no_server_behind(command):
    command.wait_for(command.is_ready)
    command.process.kill()
    command.process.wait()
    servers = [start["pids"][0] for start in command.started()]
    command.wait_for(lambda: not any(map(lives, servers)))
    for pid in filter(lives, command.pids()):  # in vLLM an engine ends when its server has ended
        os.kill(pid, signal.SIGKILL)
