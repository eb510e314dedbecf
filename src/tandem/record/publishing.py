"""Writing of a checkpoint in the background: every rank writes its part, and rank 0 publishes it.

A checkpoint is written under a temporary name in its final folder, flushed, and renamed; nothing
older is deleted before that.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path

from torch import Tensor

from tandem import distributed, processes
from tandem.record import durable
from tandem.record.checkpoint import (
    MANIFEST,
    POLICY,
    STATE,
    TEMPORARY,
    find_flaws,
    hash_of,
    list_not_finite,
    list_published,
    manifest_of,
    newest_until,
    to_json,
)
from tandem.record.tensor_files import write_tensors
from tandem.stop import Stop

ABANDONED_AFTER = 3600.0  # seconds of silence of a writer on another host
HEADER_BYTES = 256  # of one tensor in a safetensors header, generously
PAUSE = 0.05  # seconds between two checks for the parts of other ranks

Groups = Mapping[str, Mapping[str, Tensor]]
Entries = dict[str, dict[str, int | str]]  # file -> bytes and sha256


class CheckpointError(Stop):
    """A checkpoint could not be written; earlier ones are unchanged."""

    may_save = False


def publish(folder: Path, step: int, tensors: Groups, state: Mapping, *, keep: int) -> Path:
    """Make checkpoint `step` appear whole, then drop all but the `keep` newest up to it."""
    writing = Writing(folder, step, tensors, state, keep=keep)
    writing.wait()
    return writing.target


class Writing:
    """A checkpoint that a thread writes; `wait` raises if it failed."""

    def __init__(
        self,
        folder: Path,
        step: int,
        tensors: Groups,
        state: Mapping,
        *,
        keep: int,
        spared: Collection[int] = (),
        how_to_go_on: str = "resume",
    ) -> None:
        """Collective. `tensors` are this rank's part and must not change any more. The newest
        `keep` checkpoints stay, and for each `spared` step the newest one up to it. `how_to_go_on`
        is the advice in an error of the disk.

        A whole checkpoint of the same step is left as it is: a step has one content. Raises
        ValueError for keep < 1, CheckpointError if writing cannot begin.
        """
        if keep < 1:
            raise ValueError(
                f"keep={keep} would delete the checkpoint just written; keep at least 1"
            )
        self.target, self.step, self.keep = folder / f"step_{step:06d}", step, keep
        self.spared, self.how_to_go_on = tuple(spared), how_to_go_on
        self.tensors, self.text = tensors, to_json(state)
        self.rank, self.ranks = distributed.rank(), distributed.world_size()
        self.error: Exception | None = None
        self.given_up = False
        broken = list_not_finite(tensors.get(POLICY, {}))
        told = distributed.all_gather_object([(_size(tensors), broken)])
        place, refusal = distributed.all_gather_object([self._begin(told)])[0]
        if refusal is not None:
            raise CheckpointError(refusal)
        self.thread: threading.Thread | None = None
        if place is not None:
            self.place = Path(place)
            self.thread = threading.Thread(target=self._work, daemon=True)
            self.thread.start()

    def wait(self) -> None:
        """Wait until the checkpoint is published; collective. Raises CheckpointError on failure."""
        if self.thread is None:
            return
        if self.rank:
            self.thread.join()
        others = distributed.all_gather_object([str(self.error or "") if self.rank else ""])
        self.given_up = any(others)
        self.thread.join()
        of_first = distributed.all_gather_object([str(self.error or "")])[0]
        if reason := next(filter(None, (*others, of_first)), None):
            raise CheckpointError(
                f"checkpoint {self.target} was not written: {reason}; those before it are "
                f"untouched, so free some space or repair the disk, and {self.how_to_go_on}"
            ) from self.error

    def join(self, seconds: float | None = None) -> None:
        """Wait for this rank's part alone, when collectives are no longer possible."""
        if self.thread is not None:
            self.thread.join(seconds)

    def _begin(self, told: list[tuple[int, list[str]]]) -> tuple[str | None, str | None]:
        """The folder to write in, or the reason against it; neither if the checkpoint exists."""
        if self.rank or not find_flaws(self.target):
            return None, None
        if broken := [name for _, names in told for name in names]:
            return None, (
                f"checkpoint {self.target} was not written: {len(broken)} weights are not finite, "
                f"such as {broken[0]}; earlier checkpoints are untouched"
            )
        folder, place = self.target.parent, _temporary(self.target)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _sweep(folder)
            _needs_room(folder, sum(size for size, _ in told) + len(self.text))
            place.mkdir()
        except OSError as error:
            return None, (
                f"checkpoint {self.target} was not written: {error}; those before it are "
                f"untouched, so free some space or repair the disk, and {self.how_to_go_on}"
            )
        return str(place), None

    def _work(self) -> None:
        try:
            entries = {self._file(x): self._write(x) for x in self.tensors}
            if self.rank:
                durable.replace(self._rank_file(self.rank), to_json(entries))
                return
            for rank in range(1, self.ranks):
                entries |= self._entries_of(rank)
            self._finish(entries)
        except Exception as error:  # `wait` raises it in the thread of the run
            self.error = error
        finally:
            if not self.rank:
                shutil.rmtree(self.place, ignore_errors=True)

    def _write(self, group: str) -> dict[str, int | str]:
        return write_tensors(self.place / self._file(group), self.tensors[group])

    def _file(self, group: str) -> str:
        part = f".{self.rank:05d}" if self.ranks > 1 else ""
        return f"{group}{part}.safetensors"

    def _rank_file(self, rank: int) -> Path:
        return self.place / f"{rank:05d}.json"

    def _entries_of(self, rank: int) -> Entries:
        path = self._rank_file(rank)
        while not path.exists():
            if self.given_up:
                return {}
            time.sleep(PAUSE)
        entries = json.loads(path.read_bytes())
        path.unlink()
        return entries

    def _finish(self, entries: Entries) -> None:
        if self.given_up:
            return
        durable.write(self.place / STATE, self.text)
        entries[STATE] = {"bytes": len(self.text), "sha256": hash_of(self.text)}
        durable.write(self.place / MANIFEST, manifest_of(self.step, entries))
        durable.sync(self.place)
        if self.target.exists():  # torn: a whole one would have been left as it is
            _discard(self.target)
        self.place.rename(self.target)
        durable.sync(self.target.parent)
        _retire(self.target.parent, self.step, keep=self.keep, spared=self.spared)


def _size(tensors: Groups) -> int:
    named = [x for group in tensors.values() for x in group.values()]
    return sum(x.numel() * x.element_size() + HEADER_BYTES for x in named)


def _needs_room(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size:
        raise OSError(errno.ENOSPC, f"it takes {size:,} bytes and {free:,} are free")


def _temporary(target: Path) -> Path:
    writer = f"{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex}"
    return target.with_name(f"{target.name}.tmp-{writer}")


def _discard(path: Path) -> None:
    """Delete under a temporary name: dying halfway must not leave half a checkpoint."""
    doomed = _temporary(path)
    path.rename(doomed)
    shutil.rmtree(doomed)


def _retire(folder: Path, step: int, *, keep: int, spared: Collection[int]) -> None:
    there = [found for found in list_published(folder) if found[0] <= step]
    stay = [found for limit in spared if (found := newest_until(there, limit)) is not None]
    for _, path in there[:-keep]:
        if path not in stay:
            _discard(path)


def _sweep(folder: Path) -> None:
    """Remove the leftovers of writers that died."""
    for path in folder.iterdir():
        writer = TEMPORARY.fullmatch(path.name)
        if writer and _is_dead(path, host=writer["host"], pid=int(writer["pid"])):
            shutil.rmtree(path)


def _is_dead(path: Path, *, host: str, pid: int) -> bool:
    if host != socket.gethostname():
        touched = max(p.stat().st_mtime for p in (path, *path.iterdir()))
        return time.time() - touched > ABANDONED_AFTER
    # A process publishes one checkpoint at a time: its own id on a leftover is a reused one.
    return pid == os.getpid() or not processes.is_running(pid)
