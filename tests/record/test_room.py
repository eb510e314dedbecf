"""A place that is not writable, or has no room, is refused before training."""

import errno
import os
import resource
from multiprocessing import get_context
from types import SimpleNamespace

import pytest
from safetensors import SafetensorError

from tandem.record import room
from tandem.record.room import check_place, check_room, measure_size, stop_where_full
from tandem.stop import Stop, command_to_resume

GIB = 2**30


@pytest.mark.parametrize("below", ["", "runs/one"])
def test_a_file_is_no_place_for_a_run(tmp_path, below):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"^run_dir=.*/file is a file; give a directory$"):
        check_place(tmp_path / "file" / below)


def test_a_name_that_no_file_can_have_is_no_place_for_a_run(tmp_path):
    with pytest.raises(ValueError, match=r"^run_dir=.*: File name too long; give another$"):
        check_place(tmp_path / ("a" * 300))


def test_a_place_that_takes_no_file_is_refused_by_its_reason(tmp_path, monkeypatch):
    def refuse(*, dir):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(room.tempfile, "TemporaryFile", refuse)
    with pytest.raises(ValueError, match=r" is not writable \(Read-only file system\); give a"):
        check_place(tmp_path / "run")


def test_a_place_that_is_fine_is_left_as_it_was(tmp_path):
    check_place(tmp_path / "some" / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("free", "held", "fits"), [(3.0, 0, True), (2.9, 0, False), (1.0, 2 * GIB, True)]
)
def test_one_more_checkpoint_than_are_kept_must_fit(tmp_path, monkeypatch, free, held, fits):
    usage = SimpleNamespace(free=free * GIB)
    monkeypatch.setattr(room.shutil, "disk_usage", lambda path: usage)
    if fits:
        return check_room(tmp_path / "run", size=GIB, keep=2, held=held)
    with pytest.raises(ValueError, match=r"3 checkpoints of 1 GiB .* take 3 GiB, but 2\.9 GiB are"):
        check_room(tmp_path / "run", size=GIB, keep=2, held=held)


def test_a_folder_weighs_what_its_files_do(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a").write_bytes(b"x" * 100)
    (tmp_path / "b").write_bytes(b"x" * 11)
    assert measure_size(tmp_path) == 111
    assert measure_size(tmp_path / "nowhere") == 0


def test_a_full_disk_is_one_line_with_the_file_and_how_to_go_on(tmp_path):
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "metrics.jsonl"))
    with pytest.raises(Stop) as stopped, stop_where_full(tmp_path):
        raise error
    said = str(stopped.value)
    assert said.startswith(f"{tmp_path}/metrics.jsonl: No space left on device; free some space")
    assert said.endswith("or repair the disk, and give the same command again")  # no run yet
    (tmp_path / "config.yaml").touch()
    said = pytest.raises(Stop, match=f"go on with: {command_to_resume(tmp_path)}$")
    with said, stop_where_full(tmp_path):
        raise error
    said = pytest.raises(Stop, match=r"and give the same command again$")  # of a warm start
    with said, stop_where_full(tmp_path, stays=False):
        raise error


def test_weights_that_are_not_written_are_one_line_too(tmp_path):
    said = pytest.raises(Stop, match="weights was not written: no space")
    with said, stop_where_full(tmp_path):
        raise SafetensorError("no space")


def test_other_errors_of_the_system_are_what_they_were(tmp_path):
    with pytest.raises(FileNotFoundError), stop_where_full(tmp_path):
        (tmp_path / "nothing").read_bytes()


def test_a_limit_of_the_kernel_on_files_stops_as_a_full_disk_does(tmp_path):
    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            with stop_where_full(tmp_path):
                (tmp_path / "file").write_bytes(b"x" * 200)
        except Stop:
            os._exit(7)

    child = get_context("fork").Process(target=fill)
    child.start()
    child.join()
    assert child.exitcode == 7
