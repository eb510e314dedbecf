"""Weights of reward models published as one file: safetensors, never a pickle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tandem.contracts.parts import expand_home
from tandem.hub import shorten_error


def weights_file(key: str, given: str, *, inside: str = "") -> Path:
    """The safetensors file that a key names.

    `inside`: how the weights are reached in the pickle that the authors publish. Raises ValueError
    for that pickle, with the line that converts it.
    """
    path = expand_home(given)
    if path.suffix != ".safetensors":
        made = path.with_suffix(".safetensors")
        raise ValueError(
            f"{key}={given} is not a .safetensors file; if you trust its author, convert it once: "
            'python -c "import torch, safetensors.torch as s; '
            f"found = torch.load('{path}', weights_only=True){inside}; "
            f"s.save_file({{n: x.clone() for n, x in found.items()}}, '{made}')\""
        )
    return path


@contextmanager
def refusing_others(key: str, given: str) -> Iterator[None]:
    """Raises ValueError, naming the key, where its weights cannot be read or fit no model."""
    try:
        yield
    except Exception as error:  # of safetensors, of the file system, of torch: other weights
        said = " ".join(str(error).split())[:200] or shorten_error(error)
        raise ValueError(f"{key}={given} do not fit this model: {said}") from None
