"""The check that a run directory is writable and has room."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from tandem.record.next_commands import how_to_go_on
from tandem.stop import Stop

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
GIB = 2**30


def check_place(place: Path, *, key: str = "run_dir") -> None:
    """Raise ValueError for a directory that cannot be made or written to. Creates nothing.

    key: the configuration key of the directory, here and below.
    """
    try:
        above = _find_existing(place)
    except OSError as error:  # for example a name that no file can have
        raise ValueError(f"{key}={place}: {error.strerror}; give another") from None
    if not above.is_dir():
        raise ValueError(f"{key}={place}: {above} is a file; give a directory")
    try:
        tempfile.TemporaryFile(dir=above).close()
    except OSError as error:
        raise ValueError(
            f"{key}={place}: {above} is not writable ({error.strerror}); give a "
            "directory of your own, on a disk with free space"
        ) from error


def check_room(
    place: Path, *, size: float, keep: int, held: int, key: str = "run_dir", within: str = ""
) -> None:
    """Raise ValueError if checkpoints of `size` bytes do not fit: `keep` of them, and one more
    while it is written. `held` bytes of them exist already.

    within: the key whose list holds the overrides of this run, if it is part of another one.
    """
    free, wanted = shutil.disk_usage(_find_existing(place)).free, (keep + 1) * size - held
    if free < wanted:
        inside = f" in {within}" if within else ""
        fewer = f"set checkpoints.keep=1{inside}, " if keep > 1 else ""
        raise ValueError(
            f"{key}={place}: {keep + 1} checkpoints of {size / GIB:.3g} GiB (checkpoints.keep="
            f"{keep}, and one being written) take {wanted / GIB:.3g} GiB, but {free / GIB:.3g} "
            f"GiB are free; free some space, {fewer}or give a {key} on another disk"
        )


def _find_existing(place: Path) -> Path:
    return next(path for path in (place, *place.absolute().parents) if path.exists())


def measure_size(folder: Path) -> int:
    """Bytes of all files in it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@contextmanager
def stop_where_full(run_dir: Path, *, stays: bool = True) -> Iterator[None]:
    """End a run with one line when the disk is full; published checkpoints stay whole.

    Raises Stop in place of the disk's error. stays: whether the run directory is kept.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        reason, cause = f"{error.filename or run_dir}: {error.strerror}", error
    except SafetensorError as error:
        reason, cause = f"a file of weights was not written: {error}", error
    else:
        return
    how = how_to_go_on(run_dir, stays=stays and (run_dir / "config.yaml").exists())
    raise Stop(f"{reason}; free some space or repair the disk, and {how}") from cause
