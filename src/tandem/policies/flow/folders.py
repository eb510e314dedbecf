"""Where a pipeline lies: a folder in diffusers' layout, or a repository of the hub."""

from __future__ import annotations

import sys
from pathlib import Path

from tandem.hub import one_line

INDEX = "model_index.json"
PATTERNS = ("*.json", "*/*.json", "*/*.safetensors", "*/*.txt", "*/*.model")


def pipeline_folder(path: str | None) -> Path:
    """The folder itself, or the hub's copy of it on this machine, fetched if it can be."""
    if path is None:
        raise ValueError("model.path is null: give the folder of a diffusers pipeline")
    folder = Path(path).expanduser()
    if not folder.is_dir():
        folder = from_hub(path)
    if not (folder / INDEX).is_file():
        raise ValueError(f"model.path={path} holds no {INDEX}: it is not a diffusers pipeline")
    return folder


def without_bars() -> None:
    """A bar in a file is a line per step."""
    if not sys.stderr.isatty():
        from diffusers.utils import logging as of_pipelines
        from transformers.utils import logging as of_encoders

        of_pipelines.disable_progress_bar()
        of_encoders.disable_progress_bar()


def from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise ValueError(f"model.path={name}: there is no such folder")
    try:
        return Path(snapshot_download(name, allow_patterns=list(PATTERNS)))
    except Exception as error:  # no network, no such name, no access: the reason is in the text
        raise ValueError(
            f"model.path={name} is no folder, and the hub did not give it ({one_line(error)}); "
            "give the path of a folder, or the name of a repository that can be reached"
        ) from None
