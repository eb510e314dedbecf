"""Safetensors files that are hashed as they are written, of whole tensors or of a rank's parts."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
PART = "#"  # NAME#ROW: rows of a tensor from ROW on


def part_name(name: str, row: int) -> str:
    """The name in a file for the rows of a tensor from `row` on."""
    return f"{name}{PART}{row}"


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, int | str]:
    """Write CPU tensors, which are on disk on return. Of any shape [...].

    The returned size and sha256 are of the bytes as passed to the disk, not as read back. Hashing
    and writing release the GIL.
    """
    named = sorted(tensors.items(), key=lambda x: (-x[1].element_size(), x[0]))  # aligned
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for chunk in (_header(named), *(_bytes(x) for _, x in named)):
            digest.update(chunk)
            size += file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


def read_tensors(files: list[Path]) -> dict[str, dict[str, Tensor]]:
    """Tensors by group, the first word of a file's name, with parts joined. Of any shape [...]."""
    groups: dict[str, dict[str, Tensor]] = {}
    parts: dict[tuple[str, str], dict[int, Tensor]] = {}
    for file in files:
        group = file.name.partition(".")[0]
        whole = groups.setdefault(group, {})
        for name, tensor in load_file(file).items():
            of, cut, row = name.partition(PART)
            if cut:
                parts.setdefault((group, of), {})[int(row)] = tensor
            else:
                whole[name] = tensor
    for (group, name), rows in parts.items():
        groups[group][name] = torch.cat([rows[row] for row in sorted(rows)])
    return groups


def _header(named: list[tuple[str, Tensor]]) -> bytes:
    described, end = {}, 0
    for name, tensor in named:
        begin, end = end, end + tensor.nbytes
        shape = list(tensor.shape)
        described[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": shape,
            "data_offsets": [begin, end],
        }
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _bytes(tensor: Tensor) -> memoryview:
    return memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())
