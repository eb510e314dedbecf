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


def check_place(run_dir: Path) -> None:
    """Raise ValueError for a directory that cannot be made or written to. Leaves nothing."""
    try:
        place = next(path for path in (run_dir, *run_dir.absolute().parents) if path.exists())
    except OSError as error:  # of a name that no file can have
        raise ValueError(f"run_dir={run_dir}: {error.strerror}; give another") from None
    if not place.is_dir():
        raise ValueError(f"run_dir={run_dir}: {place} is a file; give a directory")
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        raise ValueError(
            f"run_dir={run_dir}: nothing can be written to {place} ({error.strerror}); give a "
            "directory that is yours, on a disk with room"
        ) from error


def check_room(run_dir: Path, *, size: float, keep: int, held: int) -> None:
    """Raise ValueError where checkpoints of `size` bytes do not fit: `keep` of them, and one more
    while it is written. `held` bytes of them are there already."""
    place = next(path for path in (run_dir, *run_dir.absolute().parents) if path.exists())
    free, wanted = shutil.disk_usage(place).free, (keep + 1) * size - held
    if free < wanted:
        fewer = "set checkpoints.keep=1, " if keep > 1 else ""
        raise ValueError(
            f"run_dir={run_dir}: {keep + 1} checkpoints of {size / GIB:.3g} GiB (checkpoints.keep="
            f"{keep}, and one that is written) take {wanted / GIB:.3g} GiB, and {free / GIB:.3g} "
            f"GiB are free; free some space, {fewer}or give a run_dir on another disk"
        )


def measure_size(folder: Path) -> int:
    """Bytes of all files in it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@contextmanager
def stop_where_full(run_dir: Path, *, stays: bool = True) -> Iterator[None]:
    """A disk that takes no more ends a run with one line; what was published is whole, and stays
    if the run directory does.

    Raises Stop in place of the error of the disk.
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
    raise Stop(f"{reason}; free some space or mend the disk, and {how}") from cause
