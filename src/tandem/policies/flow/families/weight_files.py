"""The safetensors files of a part of a pipeline, read without loading its weights."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
NAMES = ("diffusion_pytorch_model", "model")  # of diffusers and of transformers
PIECE = 4096  # bytes of a tensor that are compared: training changes all of its numbers


def weight_files(place: Path) -> list[Path]:
    """The files of weights that a library loads from a subfolder, without its variants."""
    for name in NAMES:
        index, single = place / f"{name}.safetensors.index.json", place / f"{name}.safetensors"
        if index.is_file():
            shards = set(json.loads(index.read_bytes())["weight_map"].values())
            return [place / shard for shard in sorted(shards) if (place / shard).is_file()]
        if single.is_file():
            return [single]
    return []


def read_header(file: Path) -> tuple[Mapping[str, Mapping], int]:
    """The dtype, shape and offsets of each tensor of a file, and where its data starts."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    return header, 8 + length


def saved_dtype(place: Path) -> torch.dtype:
    """The dtype of the largest tensor of a part; float32 where there are no weights."""
    headers = [read_header(file)[0] for file in weight_files(place)]
    tensors = [x for header in headers for x in header.values() if x["dtype"] in DTYPES]
    largest = max(tensors, key=lambda x: math.prod(x["shape"]), default={"dtype": "F32"})
    return DTYPES[largest["dtype"]]


def tensor_pieces(place: Path) -> Iterator[tuple]:
    """Name, dtype, shape and first bytes of each tensor of a part."""
    for file in weight_files(place):
        header, start = read_header(file)
        with file.open("rb") as stream:
            for name, told in header.items():
                first, end = told["data_offsets"]
                stream.seek(start + first)
                yield (
                    name,
                    told["dtype"],
                    tuple(told["shape"]),
                    stream.read(min(PIECE, end - first)),
                )


def refuse_other_encoders(folder: Path, own: Path, parts: Sequence[str]) -> None:
    """Raise ValueError if an encoder has other weights than the same part of the folder `own`."""
    for part in parts:
        if {*tensor_pieces(folder / part)} != {*tensor_pieces(own / part)}:
            raise ValueError(
                f"its {part} has other weights than that of model.path={own}, which encodes "
                "the prompts for both; choose a teacher with the same encoders"
            )
