"""Weights on disk on their way to an engine: complete, few, and removed with their run."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tandem.policies.engines import weight_store
from tandem.policies.engines.weight_store import WeightStore, sweep
from tandem.stop import EngineUnavailable


class Slow:
    """Weights in two files; `between` is called between them."""

    adapter = False

    def __init__(self, *, between=lambda: None):
        self.between, self.saved = between, 0

    def save(self, folder):
        folder.mkdir()
        (folder / "first.safetensors").write_text("1")
        self.between()
        (folder / "second.safetensors").write_text("2")
        self.saved += 1


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_handover_is_whole_before_it_has_its_name(tmp_path):
    seen, own = [], WeightStore(tmp_path)
    place = own.put(
        Slow(between=lambda: seen.append(own.place("0123abcd-1").exists())), "0123abcd-1"
    )
    assert seen == [False]
    assert names(place) == ["first.safetensors", "second.safetensors"]
    assert names(tmp_path / "run-0123abcd") == ["0123abcd-1", "owner"]


def test_ranks_that_hand_over_at_once_leave_one_whole_handover(tmp_path):
    shelves, meet = [WeightStore(tmp_path) for _ in range(4)], threading.Barrier(4)
    weights = [Slow(between=meet.wait) for _ in shelves]  # all of them write at the same time
    ranks = [
        threading.Thread(target=own.put, args=(given, "0123abcd-1"))
        for own, given in zip(shelves, weights, strict=True)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert sum(given.saved for given in weights) == 4
    assert names(tmp_path) == ["run-0123abcd"]
    assert names(tmp_path / "run-0123abcd") == ["0123abcd-1", "owner"]
    assert names(tmp_path / "run-0123abcd" / "0123abcd-1") == [
        "first.safetensors",
        "second.safetensors",
    ]


@pytest.mark.parametrize(("free", "where"), [(400, "memory"), (200, "disk")])
def test_memory_is_taken_where_it_has_room_for_what_is_kept_and_what_comes(
    tmp_path, monkeypatch, free, where
):
    monkeypatch.setattr(weight_store.shutil, "disk_usage", lambda place: SimpleNamespace(free=free))
    weights = Slow()
    weights.nbytes = 100  # two are kept, and a third arrives
    store, other = (WeightStore(tmp_path / "disk", memory=tmp_path / "memory") for _ in range(2))
    assert store.put(weights, "0123abcd-1").parts[-3] == where
    monkeypatch.setattr(weight_store.shutil, "disk_usage", lambda place: SimpleNamespace(free=0))
    assert store.put(weights, "0123abcd-2").parts[-3] == where
    other.keep("0123abcd-2")  # of another rank
    assert other.handovers == [tmp_path / where / "run-0123abcd" / "0123abcd-2"]


def test_a_handover_without_weights_is_refused_and_leaves_nothing(tmp_path):
    class Nothing:
        adapter = False

        def save(self, folder):
            folder.mkdir()
            (folder / "config.json").write_text("{}")

    with pytest.raises(EngineUnavailable, match="no weights were saved for the engine"):
        WeightStore(tmp_path).put(Nothing(), "0123abcd-1")
    assert not [path for path in tmp_path.rglob("*") if path.name == "config.json"]


def test_what_is_there_is_not_written_again(tmp_path):
    first, second, weights = WeightStore(tmp_path), WeightStore(tmp_path), Slow()
    assert first.put(weights, "0123abcd-1") == second.put(weights, "0123abcd-1")
    assert weights.saved == 1
    assert first.handovers == second.handovers


def test_two_are_kept_and_none_after_the_end(tmp_path):
    own = WeightStore(tmp_path)
    for number in range(1, 5):
        own.put(Slow(), f"0123abcd-{number}")
    assert names(tmp_path / "run-0123abcd") == ["0123abcd-3", "0123abcd-4", "owner"]
    del own
    assert names(tmp_path) == []


HANDS_OVER = """
import sys, time
from pathlib import Path
from tandem.policies.engines.weight_store import WeightStore

class Weights:
    adapter = False
    def save(self, folder):
        folder.mkdir()
        (folder / "model.safetensors").touch()

own = WeightStore(Path(sys.argv[1]))
own.put(Weights(), f"{sys.argv[2]}-1")
print("there", flush=True)
time.sleep(60)
"""


@pytest.mark.system
def test_what_a_killed_process_left_is_swept_and_what_a_living_one_has_is_not(tmp_path):
    dead, alive = (
        subprocess.Popen(
            [sys.executable, "-c", HANDS_OVER, str(tmp_path), run], stdout=subprocess.PIPE
        )
        for run in ("deaddead", "a11fea11")
    )
    try:
        for process in (dead, alive):
            assert process.stdout.readline() == b"there\n"
        os.kill(dead.pid, signal.SIGKILL)
        dead.wait()
        assert "run-deaddead" in names(tmp_path)
        own = WeightStore(tmp_path)
        own.put(Slow(), "0123abcd-1")
        assert names(tmp_path) == ["run-0123abcd", "run-a11fea11"]
    finally:
        for process in (dead, alive):
            process.kill()
            process.wait()
            process.stdout.close()


def orphan(folder: Path, owner: str | None) -> Path:
    (folder / "model").mkdir(parents=True)
    if owner is not None:
        (folder / "owner").write_text(owner)
    return folder


def test_nothing_is_swept_but_our_own_folders_of_this_host(tmp_path, monkeypatch):
    monkeypatch.setattr(weight_store.socket, "gethostname", lambda: "here")
    ours = f"{weight_store.SIGN} here\n"
    orphan(tmp_path / "run-00000001", ours)
    others = [
        orphan(tmp_path / "run-00000002", f"{weight_store.SIGN} there\n"),
        orphan(tmp_path / "run-00000003", "somebody\n"),
        orphan(tmp_path / "run-00000004", None),
        orphan(tmp_path / "run-today", ours),
        orphan(tmp_path / "model", ours),
    ]
    elsewhere = orphan(tmp_path.with_name(f"{tmp_path.name}-elsewhere") / "run", ours)
    (tmp_path / "run-00000005").symlink_to(elsewhere)
    sweep(tmp_path)
    assert not (tmp_path / "run-00000001").exists()
    assert all((place / "model").is_dir() for place in (*others, elsewhere))


def test_where_nobody_can_hold_a_lock_nothing_is_swept(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError("no locks here")

    monkeypatch.setattr(weight_store.fcntl, "flock", refused)
    left = orphan(
        tmp_path / "run-00000001", f"{weight_store.SIGN} {weight_store.socket.gethostname()}\n"
    )
    assert WeightStore(tmp_path).put(Slow(), "0123abcd-1").is_dir()
    assert left.is_dir()
