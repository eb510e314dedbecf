"""A run directory has one writer, and a dead one does not block it."""

import json
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from omegaconf import OmegaConf

from tandem.config import ConfigError, compose
from tandem.launch.run import train
from tandem.processes import read_start_ticks
from tandem.record.writer import LOCK, claim_folder


def hold(folder, pipe):
    """Hold the lock with a child of one's own, as workers are, that outlives its parent."""
    with claim_folder(folder):
        child = os.fork()
        if child:
            pipe.send(child)
        time.sleep(60)


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock, with a child of its own."""
    forked = multiprocessing.get_context("fork")
    here, there = forked.Pipe()
    process = forked.Process(target=hold, args=(tmp_path, there))
    process.start()
    there.close()
    child = here.recv()
    yield process
    process.kill()
    process.join()
    os.kill(child, signal.SIGKILL)


def left_behind(folder, **changed):
    """A lock that its process did not remove."""
    own = {"host": socket.gethostname(), "pid": os.getpid(), "began": "another boot 1"}
    (folder / LOCK).write_text(json.dumps({**own, "since": "then", **changed}))


def test_a_second_writer_is_refused_and_the_next_one_after_kill_9_is_not(tmp_path, holder, caplog):
    refused = pytest.raises(ValueError, match=rf"^{tmp_path} is written by process {holder.pid} on")
    with refused, claim_folder(tmp_path):
        pass
    assert json.loads((tmp_path / LOCK).read_text())["pid"] == holder.pid
    holder.kill()
    holder.join()
    with caplog.at_level(logging.WARNING), claim_folder(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    assert f"process {holder.pid} on" in caplog.text and "is dead; its lock is" in caplog.text


def test_a_run_is_refused_where_another_writes_before_anything_is_built(tmp_path, holder):
    with pytest.raises(ConfigError, match="one run directory has one writer"):
        train(f"run_dir='{tmp_path}'", "algorithm=dpo", "data=sort_pairs")
    assert {path.name for path in tmp_path.iterdir()} == {LOCK}


def test_a_run_that_goes_on_is_refused_where_another_writes(tmp_path, holder):
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(compose(), resolve=True))
    with pytest.raises(ConfigError, match="one run directory has one writer"):
        train(f"resume='{tmp_path}'")
    assert {path.name for path in tmp_path.iterdir()} == {LOCK, "config.yaml"}


@pytest.mark.parametrize("pid", ["12", 1e400, 10**20, -1, 0, True, None])
def test_a_lock_that_names_no_process_is_taken_over(tmp_path, pid):
    left_behind(tmp_path, pid=pid)
    with claim_folder(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()


def test_a_lock_that_nests_deeper_than_a_parser_goes_is_taken_over(tmp_path):
    (tmp_path / LOCK).write_text("[" * 100_000)
    with claim_folder(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()


def test_a_used_process_id_is_no_sign_of_life(tmp_path):
    left_behind(tmp_path)
    with claim_folder(tmp_path):
        pass


def test_a_killed_process_that_nobody_has_waited_for_runs_no_more():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    before = read_start_ticks(process.pid)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert before is not None and read_start_ticks(process.pid) is None
    process.communicate()


def test_a_process_that_is_there_counts_where_files_have_no_locks(tmp_path):
    left_behind(tmp_path, began=read_start_ticks(os.getpid()))
    refused = pytest.raises(ValueError, match="one run directory has one writer")
    with refused, claim_folder(tmp_path):
        pass


def test_a_copy_of_a_directory_where_another_writes_is_free_and_the_directory_is_not(
    tmp_path, holder, caplog
):
    copy = tmp_path / "copy"
    copy.mkdir()
    while not (tmp_path / LOCK).read_text():
        time.sleep(0.01)
    shutil.copy(tmp_path / LOCK, copy / LOCK)
    with caplog.at_level(logging.WARNING), claim_folder(copy):
        assert json.loads((copy / LOCK).read_text())["pid"] == os.getpid()
        refused = pytest.raises(ValueError, match="one run directory has one writer")
        with refused, claim_folder(tmp_path):
            pass
    assert f"its lock is a copy of that of process {holder.pid} on" in caplog.text


def test_of_another_machine_the_file_to_delete_is_named(tmp_path):
    left_behind(tmp_path, host="elsewhere")
    refused = pytest.raises(ValueError, match=rf"^{tmp_path} is or was written by process \d+ on")
    with refused, claim_folder(tmp_path):
        pass
    (tmp_path / LOCK).unlink()
    with claim_folder(tmp_path):
        pass


def test_the_lock_is_gone_however_the_run_ends(tmp_path):
    with pytest.raises(KeyboardInterrupt), claim_folder(tmp_path / "run"):
        raise KeyboardInterrupt
    assert not (tmp_path / "run").exists()  # nothing was written
    with claim_folder(tmp_path):
        (tmp_path / "kept").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_torn_lock_of_a_dead_process_is_nobody_s(tmp_path):
    (tmp_path / LOCK).write_text('{"host": "el')
    with claim_folder(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()


def enter(folder, count):
    for _ in range(40):
        try:
            with claim_folder(folder):
                (folder / "inside").touch(exist_ok=False)
                time.sleep(0.001)
                (folder / "inside").unlink()
                count.value += 1
        except ValueError:
            time.sleep(0.001)


def test_of_many_that_come_and_go_at_once_never_two_are_inside(tmp_path):
    forked = multiprocessing.get_context("fork")
    count = forked.Value("i", 0)
    processes = [forked.Process(target=enter, args=(tmp_path, count)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert count.value > 0
