import errno
import multiprocessing
import os
import random
import resource
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tandem.record import publishing
from tandem.record.checkpoint import find_newest_whole, read
from tandem.record.publishing import CheckpointError, publish

FORK = multiprocessing.get_context("fork")


def groups(step: int) -> dict[str, dict[str, torch.Tensor]]:
    """Contents that depend on the step, in several dtypes."""
    weights = {
        "layer.weight": torch.full((8, 16), step / 3),
        "layer.bias": torch.full((5,), step / 7, dtype=torch.bfloat16),
        "empty": torch.zeros(0, 4),
    }
    return {"policy": weights, "module": {"count": torch.tensor(step), "done": torch.tensor(True)}}


def save(folder: Path, step: int, keep: int = 3) -> Path:
    return publish(folder, step, groups(step), {"iteration": step, "lr": 0.1 * step}, keep=keep)


def assert_holds(path: Path, step: int) -> None:
    tensors, state = read(path)
    assert state == {"iteration": step, "lr": 0.1 * step}
    for group, named in groups(step).items():
        assert tensors[group].keys() == named.keys()
        for name, tensor in named.items():
            assert torch.equal(tensors[group][name], tensor)
            assert tensors[group][name].dtype == tensor.dtype


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_published_is_read_back(tmp_path):
    save(tmp_path, 40)
    found = find_newest_whole(tmp_path)
    assert (found.step, found.skipped) == (40, ())
    assert_holds(found.path, 40)


def test_no_folder_holds_no_checkpoint(tmp_path):
    found = find_newest_whole(tmp_path / "absent")
    assert (found.path, found.step, found.skipped) == (None, 0, ())


def test_steps_are_ordered_as_numbers(tmp_path):
    for step in (999_999, 1_000_000):
        save(tmp_path, step)
    assert find_newest_whole(tmp_path).step == 1_000_000


def test_only_the_newest_are_kept(tmp_path):
    for step in (10, 20, 30, 40):
        save(tmp_path, step, keep=2)
    assert names(tmp_path) == ["step_000030", "step_000040"]


def test_keeping_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="keep at least 1"):
        save(tmp_path, 1, keep=0)


def every_file() -> list[str]:
    return ["manifest.json", "state.json", "policy.safetensors", "module.safetensors"]


@pytest.mark.parametrize("name", every_file())
@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_a_truncated_file_sends_resume_to_the_checkpoint_before(tmp_path, name, share):
    save(tmp_path, 10)
    torn = save(tmp_path, 20) / name
    torn.write_bytes(torn.read_bytes()[: int(share * torn.stat().st_size)])
    assert_falls_back(tmp_path, name)


@pytest.mark.parametrize("name", every_file())
def test_a_flipped_bit_anywhere_sends_resume_to_the_checkpoint_before(tmp_path, name):
    save(tmp_path, 10)
    torn = save(tmp_path, 20) / name
    whole = torn.read_bytes()
    for place in range(0, len(whole), 7):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << (place % 8)
        torn.write_bytes(flipped)
        assert_falls_back(tmp_path, name)
    torn.write_bytes(whole)
    assert find_newest_whole(tmp_path).step == 20


@pytest.mark.parametrize("name", every_file())
def test_a_missing_file_sends_resume_to_the_checkpoint_before(tmp_path, name):
    save(tmp_path, 10)
    (save(tmp_path, 20) / name).unlink()
    assert_falls_back(tmp_path, name)


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_weights_that_are_not_finite_are_not_published(tmp_path, value):
    save(tmp_path, 40)
    broken = {"policy": {"fine": torch.ones(2), "layer": torch.tensor([1.0, value])}}
    with pytest.raises(CheckpointError, match="1 weights are not finite, such as layer"):
        publish(tmp_path, 80, broken, {}, keep=1)
    assert names(tmp_path) == ["step_000040"]


def test_a_whole_checkpoint_of_weights_that_are_not_finite_is_passed_over(tmp_path, monkeypatch):
    """Versions before this one have published such checkpoints."""
    save(tmp_path, 40)
    monkeypatch.setattr(publishing, "list_not_finite", lambda weights: [])
    publish(tmp_path, 80, {"policy": {"layer": torch.tensor(torch.inf)}}, {}, keep=2)
    monkeypatch.undo()
    found = find_newest_whole(tmp_path)
    assert found.step == 40
    assert "1 weights are not finite, such as layer" in found.skipped[0]


def test_a_manifest_of_another_checkpoint_does_not_pass(tmp_path):
    older, newer = save(tmp_path, 10), save(tmp_path, 20)
    shutil.copy(older / "manifest.json", newer)
    assert_falls_back(tmp_path, "policy.safetensors")


def assert_falls_back(folder: Path, name: str) -> None:
    found = find_newest_whole(folder)
    assert found.step == 10
    assert len(found.skipped) == 1
    assert found.skipped[0].startswith("skipped torn checkpoint step_000020:")
    assert name in found.skipped[0]


def test_a_torn_checkpoint_is_replaced_when_its_step_comes_again(tmp_path):
    (save(tmp_path, 20) / "state.json").write_text("{}")
    save(tmp_path, 20)
    assert_holds(find_newest_whole(tmp_path).path, 20)
    assert names(tmp_path) == ["step_000020"]


def test_a_whole_checkpoint_of_the_same_step_is_left_alone(tmp_path):
    before = (save(tmp_path, 20) / "manifest.json").stat()
    after = (save(tmp_path, 20) / "manifest.json").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_torn_checkpoint_of_the_future_does_not_cost_the_present_one(tmp_path):
    (save(tmp_path, 45) / "state.json").write_text("{}")
    save(tmp_path, 44, keep=1)
    assert find_newest_whole(tmp_path).step == 44


def test_leftovers_of_dead_writers_go_and_those_of_others_stay(tmp_path):
    host = publishing.socket.gethostname()
    dead = FORK.Process(target=int)
    dead.start()
    dead.join()
    gone = [f"step_000010.tmp-{host}.{pid}.{'0' * 32}" for pid in (dead.pid, os.getpid())]
    stay = [
        f"step_000010.tmp-{host}.{os.getppid()}.{'0' * 32}",
        f"step_000010.tmp-else.1.{'0' * 32}",
    ]
    for name in (*gone, *stay):
        (tmp_path / name).mkdir()
    save(tmp_path, 20)
    assert names(tmp_path) == sorted([*stay, "step_000020"])


def test_a_silent_writer_on_another_host_is_given_up(tmp_path):
    leftover = tmp_path / f"step_000010.tmp-else.1.{'0' * 32}"
    leftover.mkdir()
    os.utime(leftover, (0, 0))
    save(tmp_path, 20)
    assert not leftover.exists()


def test_a_save_that_does_not_fit_is_not_begun(tmp_path, monkeypatch):
    save(tmp_path, 10, keep=1)
    monkeypatch.setattr(publishing.shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    with pytest.raises(CheckpointError, match="and 100 are free; those before it are untouched"):
        save(tmp_path, 20, keep=1)
    assert names(tmp_path) == ["step_000010"]
    assert_holds(find_newest_whole(tmp_path).path, 10)


@pytest.mark.parametrize("call", range(6))
def test_a_disk_that_fills_during_a_save_costs_nothing(tmp_path, monkeypatch, call):
    save(tmp_path, 10, keep=1)
    count = iter(range(100))
    fsync = os.fsync

    def filling(descriptor: int) -> None:
        if next(count) == call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", filling)
    with pytest.raises(CheckpointError, match="No space left on device"):
        save(tmp_path, 20, keep=1)
    monkeypatch.undo()
    found = find_newest_whole(tmp_path)
    assert found.skipped == ()
    assert_holds(found.path, found.step)
    # The last flush is of the parent: the new one is in place by then, and the old one remains.
    assert names(tmp_path) == (["step_000010", "step_000020"] if call == 5 else ["step_000010"])


def test_a_write_that_the_kernel_refuses_costs_nothing(tmp_path):
    save(tmp_path, 10, keep=1)
    reader, writer = FORK.Pipe(duplex=False)

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
        try:
            save(tmp_path, 20, keep=1)
        except CheckpointError as error:
            writer.send(str(error))

    child = FORK.Process(target=limited)
    child.start()
    child.join()
    assert reader.poll()
    assert "was not written" in reader.recv()
    assert names(tmp_path) == ["step_000010"]
    assert_holds(find_newest_whole(tmp_path).path, 10)


@pytest.mark.system
def test_killed_at_any_moment_the_newest_checkpoint_is_whole(tmp_path):
    finished = FORK.RawValue("q", 0)  # a lock would die with the child that holds it
    moments = random.Random(0)

    def write_for_ever(step: int) -> None:
        while True:
            step += 1
            save(tmp_path, step, keep=2)
            finished.value = step

    for _ in range(20):
        child = FORK.Process(target=write_for_ever, args=(find_newest_whole(tmp_path).step,))
        before = finished.value
        child.start()
        while finished.value == before:
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.03))
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        found = find_newest_whole(tmp_path)
        assert found.skipped == ()
        assert found.step >= finished.value
        if found.path is not None:
            assert_holds(found.path, found.step)
    save(tmp_path, find_newest_whole(tmp_path).step + 1, keep=1)
    assert len(names(tmp_path)) == 1  # the leftovers of the twenty are gone
