"""Pipeline folders, local or on the hub, and functions that load their networks."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from tandem import hub
from tandem.contracts.parts import expand_home
from tandem.hub import shorten_error
from tandem.policies.flow.families.weight_files import saved_dtype

INDEX = "model_index.json"
CONFIGURATIONS = ("*.json", "*/*.json")
PATTERNS = (*CONFIGURATIONS, "*/*.safetensors", "*/*.txt", "*/*.model", "*/*.jinja")


def pipeline_folder(path: str | None, *, patterns: Sequence[str] = PATTERNS) -> Path:
    """A local folder, or the local copy of a hub repository, downloaded if needed.

    Raises ValueError if neither can be had. `patterns`: the files to download.
    """
    if path is None:
        raise ValueError("model.path is null: set it to the folder of a diffusers pipeline")
    folder = expand_home(path)
    if not folder.is_dir():
        folder = from_hub(path, patterns)
    if not (folder / INDEX).is_file():
        raise ValueError(f"model.path={path} has no {INDEX}: it is not a diffusers pipeline")
    return folder


def without_bars() -> None:
    """Turn off the progress bars of diffusers and transformers."""
    from diffusers.utils import logging

    logging.disable_progress_bar()
    hub.hide_bars()


def from_hub(name: str, patterns: Sequence[str]) -> Path:
    """The local copy of a hub repository. Raises ValueError if it cannot be downloaded."""
    from huggingface_hub import snapshot_download

    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise ValueError(f"model.path={name}: this folder does not exist")
    try:
        return Path(snapshot_download(name, allow_patterns=list(patterns)))
    except Exception as error:  # no network, no such name, no access: the message has the reason
        raise ValueError(
            f"model.path={name} is not a folder and could not be downloaded from the hub "
            f"({shorten_error(error)}); set it to a folder or a repository that you can access"
        ) from None


def read_index(folder: Path) -> dict:
    """The `model_index.json`: the class of each part, and settings of the pipeline."""
    return json.loads((folder / INDEX).read_bytes())


def refuse_pickled_readers(folder: Path, readers: Sequence[str]) -> None:
    """Refuse encoders saved as pickles before they are needed; the index names their classes."""
    index = read_index(folder)
    for part in readers:
        kind = ".".join(map(str, index.get(part) or ()))
        hub.refuse_pickles(folder, key="model.path", kind=kind, part=part)


def diffusers_class(name: str) -> type:
    """The class of that name. The import takes seconds."""
    import diffusers

    return getattr(diffusers, name)


def load_network(
    folder: Path, part: str, kind: type[nn.Module], dtype: torch.dtype | None
) -> nn.Module:
    """The network in a subfolder, with all of its weights. dtype None: as saved.

    Raises ValueError, one line, if it cannot be loaded.
    """
    refuse_other_family(folder, part, kind)
    hub.refuse_pickles(folder, key="model.path", kind=hub.name_of(kind), part=part)
    with one_line(folder, part):
        network, told = kind.from_pretrained(
            folder,
            subfolder=part,
            dtype=dtype or saved_dtype(folder / part),  # diffusers' own default is float32
            output_loading_info=True,
            use_safetensors=True,
        )
    if told["missing_keys"]:
        raise ValueError(f"model.path={folder}: its {part} lacks {sorted(told['missing_keys'])}")
    return network


def outline_network(
    folder: Path, part: str, kind: type[nn.Module], dtype: torch.dtype | None
) -> nn.Module:
    """The network of a subfolder's configuration, on torch's meta device, without weights.

    Raises ValueError as `load_network` does.
    """
    refuse_other_family(folder, part, kind)
    with one_line(folder, part), torch.device("meta"):
        network = kind.from_config(kind.load_config(folder, subfolder=part))
        dtype = dtype or saved_dtype(folder / part)
    return nn.Module.to(network, dtype)  # diffusers' own `to` warns about casts


def outline_reader(folder: Path, part: str, dtype: torch.dtype | None) -> nn.Module:
    """A text encoder, as `outline_network`; some families define their own in diffusers.

    Raises ValueError if transformers does not have its class.
    """
    import transformers

    library, named = read_index(folder)[part]
    if library != transformers.__name__:
        own = importlib.import_module(f"diffusers.pipelines.{library}")
        return outline_network(folder, part, getattr(own, named), dtype)
    kind = getattr(transformers, named, None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise ValueError(f"model.path={folder}: its {part} is a {named}, which transformers lacks")
    with one_line(folder, part), torch.device("meta"):
        reader = kind(kind.config_class.from_pretrained(folder / part))
        return reader.to(dtype or saved_dtype(folder / part))


def load_reader(folder: Path, part: str, dtype: torch.dtype | None) -> nn.Module:
    """A text encoder with its weights. Raises ValueError if it cannot be loaded."""
    import transformers

    library, named = read_index(folder)[part]
    own = transformers if library == transformers.__name__ else None
    with one_line(folder, part):
        home = own or importlib.import_module(f"diffusers.pipelines.{library}")
        return getattr(home, named).from_pretrained(
            folder / part,
            torch_dtype=dtype or saved_dtype(folder / part),
            use_safetensors=True,
        )


def refuse_other_family(folder: Path, part: str, kind: type[nn.Module]) -> None:
    """Raise ValueError for a subfolder without a configuration, or with that of another class."""
    if not (folder / part / "config.json").is_file():
        raise ValueError(f"model.path={folder} has no {part}/config.json")
    with one_line(folder, part):
        named = json.loads((folder / part / "config.json").read_text())["_class_name"]
    if named != kind.__name__:
        raise ValueError(
            f"model.path={folder}: its {part} is a {named}, but the chosen model needs a "
            f"{kind.__name__}; set model= to the model of its family"
        )


@contextmanager
def one_line(folder: Path, part: str) -> Iterator[None]:
    """Turn any error of a library into a ValueError of one line that names the folder."""
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"model.path={folder}: its {part} cannot be loaded: {shorten_error(error)}"
        ) from None
