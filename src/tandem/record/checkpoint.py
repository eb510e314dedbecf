"""Checkpoints that are whole or absent: folders of safetensors and JSON under a manifest of hashes.

`record/publishing.py` writes them. Nothing in one is ever unpickled or instantiated.

    step_000040/
      policy.safetensors  optimizer.safetensors  ...   one file per group of tensors or, with
      policy.00003.safetensors  ...                    several ranks, one per group and rank
      state.json                                       numbers and names
      manifest.json                                    size and sha256 of each file, and its own
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from tandem import distributed
from tandem.record.tensor_files import read_tensors

FORMAT = 1
MANIFEST = "manifest.json"
STATE = "state.json"
POLICY = "policy"  # the group of the trained weights
NAME = re.compile(r"step_(\d{6,})")
TEMPORARY = re.compile(r"step_\d{6,}\.tmp-(?P<host>.+)\.(?P<pid>\d+)\.[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The newest whole checkpoint, and why each newer one was skipped."""

    path: Path | None  # None: there is no whole one
    step: int  # 0 if there is none
    skipped: tuple[str, ...]  # one line for each torn checkpoint


def find_newest_whole(folder: Path) -> Found:
    """The newest checkpoint whose bytes are all as they were written.

    Collective: each rank reads its share of the files, once.
    """
    skipped: list[str] = []
    for step, path in reversed(list_published(folder)):
        own = find_flaws(path, rank=distributed.rank(), ranks=distributed.world_size())
        reasons = list(dict.fromkeys(distributed.all_gather_object(own)))
        if not reasons:
            return Found(path=path, step=step, skipped=tuple(skipped))
        skipped.append(f"skipped torn checkpoint {path.name}: {'; '.join(reasons)}")
    return Found(path=None, step=0, skipped=tuple(skipped))


def find_newest_step(folder: Path) -> int | None:
    """The newest published step, whole or torn; None if there is none."""
    steps = [step for step, _ in list_published(folder)]
    return max(steps, default=None)


def find_flaws(path: Path, *, rank: int = 0, ranks: int = 1) -> list[str]:
    """Reasons why a checkpoint must not be used, [] if it is whole.

    Reads every byte of it, or of every `ranks`-th file, starting at file `rank`.
    """
    try:
        raw = (path / MANIFEST).read_bytes()
        manifest = json.loads(raw)
        if raw != manifest_of(manifest["step"], manifest["files"]):
            return [f"{MANIFEST} does not match its own hash"]
        files = sorted(manifest["files"].items())[rank::ranks]
        found = [flaw for name, want in files if (flaw := _flaw(path / name, want))]
        own = [path / name for name, _ in files if name.startswith(f"{POLICY}.")]
        return found or _find_displaced(path, manifest["step"]) or _find_broken(own)
    except OSError as error:
        return [f"{MANIFEST} cannot be read ({error.strerror})"]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        return [f"{MANIFEST} is damaged ({type(error).__name__})"]


def _find_displaced(path: Path, step: int) -> list[str]:
    """The flaw of a link or a wrong folder name, by which a run finds the step."""
    if path.is_symlink():
        return [f"it is a link to {path.readlink()}; replace it with a copy of the checkpoint"]
    if step != _step(path):
        return [f"it holds step {step}; rename it to step_{step:06d}"]
    return []


def _find_broken(paths: Sequence[Path]) -> list[str]:
    """The flaw of weights that were written intact but are not finite."""
    names = [name for path in paths for name in list_not_finite(load_file(path))]
    return [f"{len(names)} weights are not finite, such as {names[0]}"] if names else []


def list_not_finite(weights: Mapping[str, Tensor]) -> list[str]:
    """The names of weights that hold an infinity or a NaN. Of any shape [...]."""
    return [name for name, x in weights.items() if not bool(x.isfinite().all())]


def check_places(folder: Path) -> None:
    """Raise ValueError for a renamed or linked checkpoint: it may belong to another run."""
    for named, path in list_published(folder):
        try:
            step = int(json.loads((path / MANIFEST).read_bytes())["step"])
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            step = named  # torn, which `find_newest_whole` reports
        if reasons := _find_displaced(path, step):
            raise ValueError(f"checkpoint {path} is refused: {reasons[0]}")


def read(path: Path) -> tuple[dict[str, dict[str, Tensor]], dict]:
    """Groups of tensors on the CPU, and the state. Copy the tensors: their alignment is arbitrary.

    Of any shape [...].
    """
    files = [path / name for name in json.loads((path / MANIFEST).read_bytes())["files"]]
    tensors = read_tensors([file for file in files if file.suffix == ".safetensors"])
    return tensors, json.loads((path / STATE).read_bytes())


def manifest_of(step: int, files: Mapping) -> bytes:
    """The only valid bytes of a manifest: any difference is damage."""
    body = {"files": files, "format": FORMAT, "step": step}
    return to_json({**body, "sha256": hash_of(to_json(body))})


def hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _flaw(path: Path, want: Mapping) -> str | None:
    try:
        if path.stat().st_size != want["bytes"]:
            return f"{path.name} has {path.stat().st_size} bytes instead of {want['bytes']}"
        return None if _hash(path) == want["sha256"] else f"{path.name} does not match its sha256"
    except OSError as error:
        return f"{path.name} cannot be read ({error.strerror})"


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def to_json(value: Mapping) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode()


def list_published(folder: Path) -> list[tuple[int, Path]]:
    """Steps and folders that carry the name of a finished checkpoint, oldest first."""
    if not folder.is_dir():
        return []
    return sorted((_step(p), p) for p in folder.iterdir() if NAME.fullmatch(p.name) and p.is_dir())


def newest_until(published: Sequence[tuple[int, Path]], step: int) -> Path | None:
    """The newest checkpoint up to `step`; None if there is none. `published`: oldest first."""
    return next((path for own, path in reversed(published) if own <= step), None)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step_"))
