"""Stored files of a folder or of tar files, read in place.

Tar files are never unpacked, and no name in them is used as a path: a member is a range of bytes.
This module walks the headers and parses each block with `tarfile`, whose own walk trusts sizes and
takes a damaged header for the end of the file.
"""

from __future__ import annotations

import os
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from tandem.data.columns import Stored
from tandem.data.decoding import MOST_BYTES, read_file
from tandem.data.records import InvalidRow

BLOCK = tarfile.BLOCKSIZE
PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)
WITHOUT_CONTENT = (
    tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE,
    tarfile.FIFOTYPE,
)  # fmt: skip
NAMES = (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE)  # headers that name the next member
SKIPPED = (tarfile.GNUTYPE_LONGLINK, tarfile.XGLTYPE)
LONGEST_NAME = 1 << 16  # bytes of a header with a name
SHARD = ".tar"
REPOSITORIES = ("datasets--", "models--", "spaces--")  # prefixes of folders in the hub's cache


def in_folder(place: Path) -> tuple[list[Stored], list[InvalidRow]]:
    """The files below a folder, sorted by name, and one line for each reason why others are left
    out. Hidden files and folders are skipped. Links to folders are not followed; links to files
    must stay in the folder, or in the hub cache that the folder is a snapshot of. Names are
    relative to the folder."""
    found: list[Stored] = []
    refused: Counter[str] = Counter()
    top = Path(os.path.realpath(place))
    homes = [top, *blobs_of(top)]
    for folder, inner, files in os.walk(place):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        for path in (Path(folder, name) for name in sorted(files) if not name.startswith(".")):
            if reason := _refuse_file(path, homes):
                refused[reason] += 1
                continue
            name = path.relative_to(place).as_posix()
            found.append(Stored(name=name, read=partial(read_file, path.absolute())))
    return found, _count_refused(place, refused, "files")


def blobs_of(top: Path) -> list[Path]:
    """The folder of the files that a snapshot in the Hugging Face cache links to: `blobs` beside
    `snapshots`, of the same repository. Empty: the folder is not a snapshot."""
    snapshots = [x.parent for x in (top, *top.parents) if x.parent.name == "snapshots"]
    places = [x.parent / "blobs" for x in snapshots if x.parent.name.startswith(REPOSITORIES)]
    return [place for place in places if place.is_dir() and not place.is_symlink()]


def _refuse_file(path: Path, homes: Sequence[Path]) -> str | None:
    """The reason why a file is refused, if it is not in these folders; None: it is read."""
    leads = Path(os.path.realpath(path)) if path.is_symlink() else None
    if leads is not None and not any(leads.is_relative_to(home) for home in homes):
        return "links that lead out of the folder"
    return None if path.is_file() or not path.exists() else "pipes or devices"


def _count_refused(place: Path, refused: Counter[str], what: str) -> list[InvalidRow]:
    reasons = [f"{count} {what} are {reason}" for reason, count in sorted(refused.items())]
    return [InvalidRow(file=str(place), line=0, reason=reason) for reason in reasons]


def in_shard(shard: Path) -> tuple[list[Stored], list[InvalidRow]]:
    """The plain files of a tar file, and one line for each reason why others are left out."""
    files: list[Stored] = []
    refused: Counter[str] = Counter()
    broken: list[InvalidRow] = []
    try:
        for name, member, start in _members(shard):
            if member.isdir():
                continue
            if reason := _refuse(member):
                refused[reason] += 1
                continue
            read = partial(_read, shard.absolute(), start, member.size)
            files.append(Stored(name=name, read=read))
    except (tarfile.TarError, ValueError, OSError) as error:
        reason = f"is truncated after {len(files)} files: {error}"
        broken = [InvalidRow(file=str(shard), line=0, reason=reason)]
    return files, broken + _count_refused(shard, refused, "members")


def _members(shard: Path) -> Iterator[tuple[str, tarfile.TarInfo, int]]:
    """The name, the header and the offset of the content of each member. Raises an error of
    `tarfile`, or ValueError, where the file is damaged."""
    with shard.open("rb") as file:
        yield from _read_members(file, shard.stat().st_size)


def _read_members(file: BinaryIO, size: int) -> Iterator[tuple[str, tarfile.TarInfo, int]]:
    place, said = 0, None
    while place < size:
        file.seek(place)
        header = file.read(BLOCK)
        if not header.strip(b"\0"):
            return
        member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        start = place + BLOCK
        length = 0 if member.type in WITHOUT_CONTENT else member.size
        if not 0 <= length <= size - start:
            raise ValueError(f"a member of {length} bytes has only {size - start} left")
        place = start + -(-length // BLOCK) * BLOCK
        if member.type in NAMES:
            said = _name(member, file.read(length) if length <= LONGEST_NAME else b"")
        elif member.type not in SKIPPED:
            yield said or member.name, member, start
            said = None


def _name(member: tarfile.TarInfo, content: bytes) -> str | None:
    """The name that a header gives the next member; None: no name."""
    if member.type == tarfile.GNUTYPE_LONGNAME:
        return content.rstrip(b"\0").decode("utf-8", "surrogateescape")
    said = None
    while content:
        length = int(content.partition(b" ")[0])
        if not 0 < length <= len(content):
            raise ValueError("the header of a name is incomplete")
        key, _, value = content[:length].partition(b" ")[2].rstrip(b"\n").partition(b"=")
        if key == b"size" or key.startswith(b"GNU.sparse"):
            raise ValueError(f"a header has {key.decode()}: the file is over 8 GB or sparse")
        said = value.decode("utf-8", "surrogateescape") if key == b"path" else said
        content = content[length:]
    return said


def _refuse(member: tarfile.TarInfo) -> str | None:
    """The reason why a member is refused; None: it is read."""
    if member.type not in PLAIN:
        return "links, devices or sparse files"
    return f"larger than {MOST_BYTES} bytes" if member.size > MOST_BYTES else None


def _read(shard: Path, start: int, size: int) -> bytes:
    """The content of a member. Raises ValueError if the file has changed."""
    try:
        with shard.open("rb") as file:
            file.seek(start)
            content = file.read(size)
    except OSError as error:
        raise ValueError(f"cannot be read: {error}") from None
    if len(content) < size:
        raise ValueError("cannot be read: the shard was cut off")
    return content
