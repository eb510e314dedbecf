"""Folders of pipelines, local or on the hub, and the loading of their networks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from tandem import hub
from tandem.hub import shorten_error

INDEX = "model_index.json"
PATTERNS = ("*.json", "*/*.json", "*/*.safetensors", "*/*.txt", "*/*.model")


def pipeline_folder(path: str | None) -> Path:
    """The folder itself, or the hub's copy of it on this machine, fetched if it can be.

    Raises ValueError where it cannot be.
    """
    if path is None:
        raise ValueError("model.path is null: give the folder of a diffusers pipeline")
    folder = Path(path).expanduser()
    if not folder.is_dir():
        folder = from_hub(path)
    if not (folder / INDEX).is_file():
        raise ValueError(f"model.path={path} holds no {INDEX}: it is not a diffusers pipeline")
    return folder


def without_bars() -> None:
    """Those of pipelines, and those of their encoders."""
    from diffusers.utils import logging

    logging.disable_progress_bar()
    hub.hide_bars()


def from_hub(name: str) -> Path:
    """The hub's copy of a pipeline on this machine. Raises ValueError where there is none."""
    from huggingface_hub import snapshot_download

    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise ValueError(f"model.path={name}: there is no such folder")
    try:
        return Path(snapshot_download(name, allow_patterns=list(PATTERNS)))
    except Exception as error:  # no network, no such name, no access: the reason is in the text
        raise ValueError(
            f"model.path={name} is no folder, and the hub did not give it "
            f"({shorten_error(error)}); "
            "give the path of a folder, or the name of a repository that can be reached"
        ) from None


def refuse_pickled_readers(folder: Path, readers: Sequence[str]) -> None:
    """Encoders are read when there are texts to encode; what they are is said in the index."""
    index = json.loads((folder / INDEX).read_bytes())
    for part in readers:
        kind = ".".join(map(str, index.get(part) or ()))
        hub.refuse_pickles(folder, key="model.path", kind=kind, part=part)


def loaded(
    folder: Path, part: str, kind: type[nn.Module], dtype: torch.dtype | Literal["auto"]
) -> nn.Module:
    """The network in a subfolder, all of its weights. Whatever cannot be loaded is one line.

    Raises ValueError with it.
    """
    if not (folder / part / "config.json").is_file():
        raise ValueError(f"model.path={folder} holds no {part}/config.json")
    hub.refuse_pickles(folder, key="model.path", kind=hub.name_of(kind), part=part)
    try:
        named = json.loads((folder / part / "config.json").read_text())["_class_name"]
        if named == kind.__name__:
            network, told = kind.from_pretrained(
                folder, subfolder=part, dtype=dtype, output_loading_info=True, use_safetensors=True
            )
    except Exception as error:  # several libraries' own; all mean that this path is of no use
        raise ValueError(
            f"model.path={folder}: its {part} cannot be loaded: {shorten_error(error)}"
        ) from None
    if named != kind.__name__:
        raise ValueError(
            f"model.path={folder}: its {part} is a {named}, and that of the chosen model a "
            f"{kind.__name__}; take the model=... of its family"
        )
    if told["missing_keys"]:
        raise ValueError(f"model.path={folder}: its {part} lacks {sorted(told['missing_keys'])}")
    return network
