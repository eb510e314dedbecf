"""Rows of pictures with captions beside them: in a folder, its metadata, or a tar file."""

from __future__ import annotations

import csv
import posixpath
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from tandem.data.checks import LONGEST_ROW, parse
from tandem.data.columns import Stored
from tandem.data.decoding import open_file
from tandem.data.lines import nonblank_lines, read_lines

PICTURES = frozenset(("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm"))
METADATA = ("metadata.jsonl", "metadata.csv")
ONE, SEVERAL = "file_name", "file_names"  # metadata columns of files, alone or after _


@dataclass(frozen=True, slots=True)
class Sample:
    """The files of one row, or a line of metadata with the files that it can name."""

    key: str
    files: Mapping[str, Stored] = field(default_factory=dict)  # ending, or name -> file
    line: bytes | Mapping[str, str] | None = None  # of metadata

    def __str__(self) -> str:
        return self.key


def split_last(name: str) -> tuple[str, str]:
    """Key and ending of a file of a folder."""
    key, _, ending = name.rpartition(".")
    return key or ending, ending if key else ""


def split_first(name: str) -> tuple[str, str]:
    """Key and ending of a member of a tar file: WebDataset cuts its name at the first dot."""
    folder, base = posixpath.split(name)
    key, _, ending = base.partition(".")
    return posixpath.join(folder, key), ending


def group(
    files: Iterable[Stored], split: Callable[[str], tuple[str, str]], prefix: str = ""
) -> tuple[list[Sample], list[str]]:
    """Samples in the order of their first files, and the counts of unread endings."""
    found: dict[str, dict[str, Stored]] = {}
    unread: Counter[str] = Counter()
    for file in files:
        key, ending = split(file.name)
        if _column(ending.lower()) is None:
            unread[ending] += 1
            continue
        found.setdefault(key, {}).setdefault(ending.lower(), file)
    reasons = [f"{count} files end in .{ending}, which is not supported" for ending, count in
               sorted(unread.items())]  # fmt: skip
    return [Sample(f"{prefix}{key}", own) for key, own in found.items()], reasons


def _column(ending: str) -> str | None:
    """The column of a file; None: not read. `images.2` is the second of several."""
    name, _, kind = ending.rpartition(".")
    if kind in PICTURES:
        return f"images.{name}" if name.isdigit() else name or "image"
    return {"txt": name or "text", "json": name or "json", "cls": name or "label"}.get(kind)


def read_sample(sample: Sample) -> dict[str, object]:
    """The row of a sample, its pictures still files. Raises ValueError for an invalid one."""
    if sample.line is not None:
        return _read_line(sample)
    row: dict[str, object] = {}
    several: dict[int, Stored] = {}
    for ending, file in sample.files.items():
        column = _column(ending)
        if column == "json":
            row = {**parse(file.read().removeprefix(BOM_UTF8)), **row}
        elif column.startswith("images."):
            several[int(column.partition(".")[2])] = file
        else:
            row[column] = file if ending.rpartition(".")[2] in PICTURES else _text(file)
    if several:
        row["images"] = [file for _, file in sorted(several.items())]
    first = posixpath.normpath(next(iter(sample.files.values())).name)
    if folder := posixpath.basename(posixpath.dirname(first)):
        row.setdefault("label", folder)
    return row


def _text(file: Stored) -> str:
    content = file.read()
    if len(content) > LONGEST_ROW:
        raise ValueError(f"{file.name} is longer than {LONGEST_ROW} bytes")
    try:
        return content.decode("utf-8-sig").strip()
    except UnicodeError:
        raise ValueError(f"{file.name} is not valid unicode") from None


def metadata(place: Path, files: Mapping[str, Stored]) -> list[Sample]:
    """A sample for each line of the metadata of a folder and its subfolders; empty: there is
    none. Raises ValueError for metadata that cannot be read."""
    found = []
    for name in files:
        if posixpath.basename(name) in METADATA:
            try:
                found += [Sample(f"{name}:{n}", files, row) for n, row in _rows(place / name)]
            except ValueError as error:
                raise ValueError(f"data.path={place}: {name} {error}") from None
    return found


def _rows(path: Path) -> Iterator[tuple[int, bytes | Mapping[str, str]]]:
    with open_file(path) as file:
        yield from enumerate(_csv(file), start=1) if path.suffix == ".csv" else nonblank_lines(file)


def _csv(file: BinaryIO) -> Iterator[Mapping[str, str]]:
    try:
        yield from csv.DictReader(line.decode() for _, line in read_lines(file))
    except (UnicodeError, csv.Error) as error:
        raise ValueError(f"cannot be read: {error}") from None


def _read_line(sample: Sample) -> dict[str, object]:
    line, row = sample.line, {}
    said = parse(line) if isinstance(line, bytes) else line
    if None in said or (line is said and None in said.values()):  # as `csv` pads a line
        raise ValueError("has more or fewer cells than the header")
    here = posixpath.dirname(sample.key)
    for column, value in said.items():
        if column == ONE or column.endswith(f"_{ONE}"):
            row[column.removesuffix(ONE).rstrip("_") or "image"] = _file(sample, here, value)
        elif column == SEVERAL or column.endswith(f"_{SEVERAL}"):
            files = _files(sample, here, column, value)
            row[column.removesuffix(SEVERAL).rstrip("_") or "images"] = files
        else:
            row[column] = value
    return row


def _files(sample: Sample, here: str, column: str, names: object) -> list[Stored | None]:
    if not isinstance(names, list):
        raise ValueError(f"`{column}` must be a list of file names")
    return [_file(sample, here, one) for one in names]


def _file(sample: Sample, here: str, name: object) -> Stored | None:
    """The file of that name, relative to the metadata, within the folder."""
    if name is None or name == "":
        return None
    path = posixpath.normpath(posixpath.join(here, name)) if isinstance(name, str) else None
    if path not in sample.files:
        raise ValueError(f"`{ONE}`: {name} does not exist in the folder")
    return sample.files[path]
