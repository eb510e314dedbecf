"""Checkpoints that are whole or absent: folders of safetensors and JSON under a manifest of hashes.

A checkpoint is written under a temporary name in the folder it will live in, flushed, and renamed;
nothing older is deleted before that. Nothing in it is ever unpickled or instantiated.

    step_000040/
      policy.safetensors  optimizer.safetensors  ...   one file for each group of tensors
      state.json                                       numbers and names
      manifest.json                                    size and sha256 of each file, and its own
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tandem.record import durable
from tandem.stop import Stop

FORMAT = 1
MANIFEST = "manifest.json"
STATE = "state.json"
POLICY = "policy"  # the group of the trained weights
WEIGHTS = f"{POLICY}.safetensors"
NAME = re.compile(r"step_(\d{6,})")
TEMPORARY = re.compile(r"step_\d{6,}\.tmp-(?P<host>.+)\.(?P<pid>\d+)\.[0-9a-f]{32}")
ABANDONED_AFTER = 3600.0  # seconds of silence of a writer on another host
HEADER_BYTES = 256  # of one tensor in a safetensors header, generously

Groups = Mapping[str, Mapping[str, Tensor]]


class CheckpointError(Stop):
    """A checkpoint could not be written; those before it are as they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The newest whole checkpoint, and why each newer one was passed over."""

    path: Path | None  # None: there is no whole one
    step: int  # 0 if there is none
    skipped: tuple[str, ...]  # one line for each torn checkpoint


def publish(folder: Path, step: int, tensors: Groups, state: Mapping, *, keep: int) -> Path:
    """Make checkpoint `step` appear whole, then drop all but the `keep` newest up to it.

    A whole one of the same step is left as it is: a step has one content. Raises ValueError for
    keep < 1, CheckpointError where it could not be written.
    """
    if keep < 1:
        raise ValueError(f"keep={keep} would delete the checkpoint just written; keep at least 1")
    target = folder / f"step_{step:06d}"
    if not find_flaws(target):
        return target
    if broken := list_not_finite(tensors.get(POLICY, {})):
        raise CheckpointError(
            f"checkpoint {target} was not written: {len(broken)} weights are not finite, "
            f"{broken[0]} for one; those before it are untouched"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        text = _json(state)
        _needs_room(folder, _size(tensors) + len(text))
        _publish(target, tensors, text)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"checkpoint {target} was not written: {error}; those before it are untouched, "
            "so free some space or mend the disk, and resume"
        ) from error
    _retire(folder, step, keep=keep)
    return target


def find_newest_whole(folder: Path) -> Found:
    """The newest checkpoint all of whose bytes are as they were written."""
    skipped: list[str] = []
    for step, path in reversed(_list_published(folder)):
        reasons = find_flaws(path)
        if not reasons:
            return Found(path=path, step=step, skipped=tuple(skipped))
        skipped.append(f"skipped torn checkpoint {path.name}: {'; '.join(reasons)}")
    return Found(path=None, step=0, skipped=tuple(skipped))


def find_newest_step(folder: Path) -> int | None:
    """Of the checkpoints that were published, whole or not; None: there is none."""
    steps = [step for step, _ in _list_published(folder)]
    return max(steps, default=None)


def find_flaws(path: Path) -> list[str]:
    """Reasons why a checkpoint must not be used, [] if it is whole. Reads every byte of it."""
    try:
        raw = (path / MANIFEST).read_bytes()
        manifest = json.loads(raw)
        if raw != _manifest(manifest["step"], manifest["files"]):
            return [f"{MANIFEST} does not match its own hash"]
        files = manifest["files"].items()
        found = [flaw for name, want in files if (flaw := _flaw(path / name, want))]
        return found or _find_displaced(path, manifest["step"]) or _find_broken(path / WEIGHTS)
    except OSError as error:
        return [f"{MANIFEST} cannot be read ({error.strerror})"]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        return [f"{MANIFEST} is damaged ({type(error).__name__})"]


def _find_displaced(path: Path, step: int) -> list[str]:
    """The fault of a whole checkpoint's place: a run finds the step by the name."""
    if path.is_symlink():
        return [f"it is a link to {path.readlink()}; copy the checkpoint itself here"]
    if step != _step(path):
        return [f"it holds step {step}; give it back its name step_{step:06d}"]
    return []


def _find_broken(path: Path) -> list[str]:
    """The fault of weights that are as they were written; the file may be absent."""
    names = list_not_finite(load_file(path)) if path.is_file() else []
    return [f"{len(names)} weights are not finite, {names[0]} for one"] if names else []


def list_not_finite(weights: Mapping[str, Tensor]) -> list[str]:
    """The names of those that hold an infinity, or what is no number. Of any shape [...]."""
    return [name for name, x in weights.items() if not bool(x.isfinite().all())]


def check_places(folder: Path) -> None:
    """Raise ValueError for a checkpoint that somebody renamed or linked: whether it is one of the
    run's own nobody knows."""
    for named, path in _list_published(folder):
        try:
            step = json.loads((path / MANIFEST).read_bytes())["step"]
        except (OSError, ValueError, KeyError, TypeError):
            step = named  # torn, which `newest_whole` sees
        if reasons := _find_displaced(path, step):
            raise ValueError(f"checkpoint {path} is refused: {reasons[0]}")


def read(path: Path) -> tuple[dict[str, dict[str, Tensor]], dict]:
    """Groups of tensors, on the CPU, and the state. Tensors may lie anywhere: copy out of them.

    Of any shape [...].
    """
    files = [path / name for name in json.loads((path / MANIFEST).read_bytes())["files"]]
    tensors = {file.stem: load_file(file) for file in files if file.suffix == ".safetensors"}
    return tensors, json.loads((path / STATE).read_bytes())


def _publish(target: Path, tensors: Groups, text: bytes) -> None:
    temporary = _temporary(target)
    try:
        temporary.mkdir()
        _write(temporary, tensors, text)
        durable.write(temporary / MANIFEST, _manifest_of(temporary, target))
        durable.sync(temporary)
        if target.exists():  # torn, or publish would have stopped
            _discard(target)
        temporary.rename(target)
        durable.sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write(folder: Path, tensors: Groups, text: bytes) -> None:
    for group, named in tensors.items():
        path = folder / f"{group}.safetensors"
        save_file({name: x.detach().cpu().contiguous() for name, x in named.items()}, path)
        durable.sync(path)
    durable.write(folder / STATE, text)


def _manifest_of(folder: Path, target: Path) -> bytes:
    files = {
        p.name: {"bytes": p.stat().st_size, "sha256": _hash(p)} for p in sorted(folder.iterdir())
    }
    return _manifest(_step(target), files)


def _manifest(step: int, files: Mapping) -> bytes:
    """The one spelling of a manifest: any other byte in it is damage."""
    body = {"files": files, "format": FORMAT, "step": step}
    return _json({**body, "sha256": hashlib.sha256(_json(body)).hexdigest()})


def _flaw(path: Path, want: Mapping) -> str | None:
    try:
        if path.stat().st_size != want["bytes"]:
            return f"{path.name} has {path.stat().st_size} bytes instead of {want['bytes']}"
        return None if _hash(path) == want["sha256"] else f"{path.name} has another sha256"
    except OSError as error:
        return f"{path.name} cannot be read ({error.strerror})"


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _json(value: Mapping) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode()


def _size(tensors: Groups) -> int:
    named = [x for group in tensors.values() for x in group.values()]
    return sum(x.numel() * x.element_size() + HEADER_BYTES for x in named)


def _needs_room(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size:
        raise OSError(errno.ENOSPC, f"it takes {size:,} bytes and {free:,} are free")


def _list_published(folder: Path) -> list[tuple[int, Path]]:
    """Steps and folders that carry the name of a finished checkpoint, oldest first."""
    if not folder.is_dir():
        return []
    return sorted((_step(p), p) for p in folder.iterdir() if NAME.fullmatch(p.name) and p.is_dir())


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step_"))


def _temporary(target: Path) -> Path:
    writer = f"{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex}"
    return target.with_name(f"{target.name}.tmp-{writer}")


def _discard(path: Path) -> None:
    """Delete under a temporary name: dying halfway must not leave half a checkpoint."""
    doomed = _temporary(path)
    path.rename(doomed)
    shutil.rmtree(doomed)


def _retire(folder: Path, step: int, *, keep: int) -> None:
    for _, path in [found for found in _list_published(folder) if found[0] <= step][:-keep]:
        _discard(path)


def _sweep(folder: Path) -> None:
    """Remove what writers left that died while writing."""
    for path in folder.iterdir():
        writer = TEMPORARY.fullmatch(path.name)
        if writer and _is_dead(path, host=writer["host"], pid=int(writer["pid"])):
            shutil.rmtree(path)


def _is_dead(path: Path, *, host: str, pid: int) -> bool:
    if host != socket.gethostname():
        touched = max(p.stat().st_mtime for p in (path, *path.iterdir()))
        return time.time() - touched > ABANDONED_AFTER
    # A process publishes one checkpoint at a time: its own id on a leftover is a reused one.
    return pid == os.getpid() or not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # signal 0 only asks
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
