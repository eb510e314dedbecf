"""Weights in a folder or a repository of the hub: where they lie, and what all loading does."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn


def located(path: str, *, key: str) -> str:
    """The path of a folder, or the name of a hub repository that is cached or can be reached.

    `key` is the setting that a complaint names.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        return str(folder)
    if folder.is_absolute() or path.startswith((".", "~")) or path.count("/") > 1:
        raise ValueError(f"{key}={path}: there is no such folder")
    check_hub(path, key)
    return path


def check_hub(name: str, key: str) -> None:
    """One quick question: transformers would ask for a minute before it gave up."""
    from huggingface_hub import HfApi, constants, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    advice = "give the path of a folder, or the name of a hub repository that can be reached"
    if constants.HF_HUB_OFFLINE:
        raise ValueError(
            f"{key}={name} is neither a folder nor in the hub's cache, and HF_HUB_OFFLINE "
            f"forbids to ask the hub; {advice}"
        )
    try:
        HfApi().model_info(name, timeout=10)
    except Exception as error:  # no network, no such name, no access: the reason is in the text
        raise ValueError(
            f"{key}={name} is no folder, and the hub did not give it ({one_line(error)}); {advice}"
        ) from None


def without_bars() -> None:
    """A bar in a file is a line per step."""
    if not sys.stderr.isatty():
        from transformers.utils import logging

        logging.disable_progress_bar()


def align(network: nn.Module) -> None:
    """Files are mapped at addresses of odd alignment, where BLAS rounds in another way."""
    for parameter in network.parameters():
        parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)


def one_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
