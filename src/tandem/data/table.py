"""A table of the Hugging Face hub, or of a folder that `datasets` can read."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import shorten
from typing import TYPE_CHECKING

from tandem.contracts import need_extra
from tandem.data.columns import ANSWERS, Columns, parts_of
from tandem.data.pictures import KEY as ANSWER

if TYPE_CHECKING:
    import datasets

BYTES = ("binary", "large_binary")  # column types that may hold picture files
LONGEST_REASON = 500  # characters


def read_table(
    name: str, subset: str | None, split: str, columns: Columns
) -> tuple[datasets.Dataset, tuple[str, ...]]:
    """A split with undecoded pictures, and its columns of pictures. Raises ValueError if it cannot
    be read or lacks a named column."""
    try:
        import datasets
    except ImportError:
        raise ValueError(need_extra("data=hub", "hub")) from None
    try:
        texts = _texts_of(name, subset, columns)
        options = {"converters": dict.fromkeys(texts, _encode)} if texts else {}
        table = datasets.load_dataset(name, subset, split=split, **options)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        where = f"data.name={name} (data.split: subset {subset}, split {split})"
        raise ValueError(f"{where}: {_reason_of(error)}") from None
    _check_columns(name, columns, table.features)
    for column in texts:
        table = table.cast_column(column, datasets.Value("string"))
    return _without_decoding(table, columns), _picture_columns(table.features, columns)


def _reason_of(error: Exception) -> str:
    """What is wrong, in one line: of a damaged file, the cause of the error alone says it."""
    import datasets

    if isinstance(error, datasets.exceptions.DatasetGenerationError) and error.__cause__:
        return shorten(str(error.__cause__), LONGEST_REASON, placeholder=" ...")
    return str(error).strip().splitlines()[0]


def _texts_of(name: str, subset: str | None, columns: Columns) -> list[str]:
    """The named columns of a CSV whose type its card does not declare, or declares as text."""
    import datasets
    from datasets.packaged_modules.csv.csv import Csv

    named = dict.fromkeys(columns.by_field.values())
    try:
        builder = datasets.load_dataset_builder(name, subset)
    except ValueError as error:
        if "find cache" not in str(error):
            raise
        return [*named]  # offline, a CSV is found in the cache only by the options it was read with
    if not isinstance(builder, Csv):
        return []
    declared, text = builder.info.features or {}, datasets.Value("string")
    return [column for column in named if declared.get(column, text) == text]


def _encode(written: str) -> bytes | None:
    """A cell of a CSV as it is written; null if it is empty. As bytes, because pandas makes
    null of a text such as NA, even of one that a converter returns."""
    return written.encode() or None


def _check_columns(name: str, columns: Columns, features: Mapping) -> None:
    for option, column in columns.by_field.items():
        within = features
        for part in parts_of(column, features):
            parts = within if isinstance(within, Mapping) else {}
            if part not in parts:
                there = sorted(parts) or "no parts"
                raise ValueError(
                    f"data.columns.{option}={column}: {name} has no such column, only {there}"
                )
            within = parts[part]


def _picture_columns(features: Mapping, columns: Columns) -> tuple[str, ...]:
    """The columns with pictures, as images or bytes. Raises ValueError for a column that holds no
    pictures but should."""
    import datasets

    found = [name for name, kind in features.items() if isinstance(_item(kind), datasets.Image)]
    for option, column in columns.by_field.items():
        inner = _item(features.get(column))
        of_bytes = _holds_bytes(inner)
        if of_bytes and option in (*ANSWERS, "images"):
            found.append(column)
        elif not of_bytes and column not in found and option in ("images", "picture"):
            raise ValueError(f"data.columns.{option}={column} holds {inner}, not pictures")
    if ANSWER in found and ANSWER not in {*columns.by_field, *columns.by_field.values()}:
        said = f"has pictures in its column `{ANSWER}`; to train on them"
        raise ValueError(f"{said}, set data.columns.{ANSWER}={ANSWER}")
    return tuple(found)


def _item(feature: object) -> object:
    """The kind of the values in a column of lists, or of any other column."""
    import datasets

    return feature.feature if isinstance(feature, datasets.List | datasets.LargeList) else feature


def _holds_bytes(kind: object) -> bool:
    """Whether values are bytes, alone or as in an image feature, which other writers store as a
    plain structure."""
    import datasets

    match kind:
        case {"bytes": datasets.Value(dtype=held)} | datasets.Value(dtype=held):
            return held in BYTES
    return False


def _without_decoding(table: datasets.Dataset, columns: Columns) -> datasets.Dataset:
    """The table with undecoded pictures, and without other columns that need decoding, such as
    sound, unless they are named: their package may be missing, and one damaged file would end the
    reading of all rows."""
    import datasets

    raw = datasets.Image(decode=False)
    for column, kind in table.features.items():
        if isinstance(inner := _item(kind), datasets.Image):
            table = table.cast_column(column, raw if inner is kind else type(kind)(raw))
    named = {parts_of(column, table.features)[0] for column in columns.by_field.values()}
    opaque = [name for name, kind in table.features.items() if _is_opaque(kind)]
    return table.remove_columns([name for name in opaque if name not in named])


def _is_opaque(kind: object) -> bool:
    """Whether values of a column are files that another package reads; JSON is none."""
    import datasets
    from datasets.features.features import require_decoding

    match kind:
        case dict():
            return any(map(_is_opaque, kind.values()))
        case datasets.List() | datasets.LargeList():
            return _is_opaque(kind.feature)
    return require_decoding(kind) and type(kind).__name__ != "Json"
