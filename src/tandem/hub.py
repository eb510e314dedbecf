"""Weights in a folder or a repository of the hub: where they lie, and what all loading does."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tandem.contracts.bounds import values_of
from tandem.contracts.parts import expand_home

if TYPE_CHECKING:
    from transformers import PretrainedConfig, ProcessorMixin

OF_FILMS = "video_preprocessor_config.json"
FILMS = "video_processor"  # the part of a processor that needs torchvision
OPTIONAL = (  # loggers that warn of optional packages, when a model's library imports them
    "transformers.utils.import_utils",  # torchvision
    "bitsandbytes",  # 4-bit kernels
    "torchao",  # kernels for GPUs
    "diffusers.quantizers.torchao",
    "torch.utils._pytree",  # the classes that torchao registers
)


def locate(path: str, *, key: str) -> str:
    """The path of a folder, or the name of a hub repository that is cached or can be reached.

    `key` is the setting that a complaint names. Raises ValueError where it is neither.
    """
    folder = expand_home(path)
    if folder.is_dir():
        return str(folder)
    refuse_absent(path, key=key)
    check_hub(path, key)
    return path


def refuse_absent(path: str, *, key: str) -> None:
    """Raise ValueError for a path that cannot be a name on the hub, and is no folder."""
    folder = expand_home(path)
    is_folder = folder.is_absolute() or path.startswith((".", "~")) or path.count("/") > 1
    if is_folder and not folder.is_dir():
        raise ValueError(f"{key}={path}: there is no such folder")


def check_hub(name: str, key: str) -> None:
    """Ask the hub once, for at most 10 s: transformers would try for a minute.

    Raises ValueError where the hub does not answer or does not have it.
    """
    from huggingface_hub import HfApi, constants, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    advice = "give the path of a folder, or the name of a hub repository that can be reached"
    if constants.HF_HUB_OFFLINE:
        raise ValueError(
            f"{key}={name} is neither a folder nor in the hub's cache, and HF_HUB_OFFLINE "
            f"forbids a download; {advice}"
        )
    try:
        HfApi().model_info(name, timeout=10)
    except Exception as error:  # no network, no such name, no access: the reason is in the text
        raise ValueError(
            f"{key}={name} is not a folder, and not available from the hub "
            f"({shorten_error(error)}); {advice}"
        ) from None


def refuse_pickles(path: str | Path, *, key: str, kind: str, part: str = "") -> None:
    """Raise where weights would be read from a pickle, which runs code.

    `kind`: library.class that would load them from the subfolder `part` of `path`.
    """
    folder = expand_home(path) / part
    shards = [shard for file in folder.glob("*.safetensors.index.json") for shard in _shards(file)]
    if shards or any(folder.glob("*.safetensors")):
        found = sorted({shard for shard in shards if not shard.endswith(".safetensors")})
    else:
        found = sorted(file.name for file in folder.glob("*.bin"))
    if not found:
        return
    library, _, name = kind.rpartition(".")
    inside = f", subfolder={_quote(part)}" if part else ""
    convert = (
        f"from {library} import {name} as M; M.from_pretrained({_quote(path)}{inside}, "
        f"use_safetensors=False).save_pretrained({_quote(folder)})"
    )
    raise ValueError(
        f"{key}={path} has its weights in {found[0]}, a pickle, which runs code when it is read; "
        f"where you trust who made it, convert it once: python -c {shlex.quote(convert)}"
    )


def _quote(text: str | Path) -> str:
    """A literal of Python in double quotes, which stay as they are within the single ones of a
    shell."""
    return json.dumps(str(text), ensure_ascii=False)


def name_of(kind: type) -> str:
    """library.class, as a class of a library is imported."""
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def _shards(index: Path) -> list[str]:
    try:
        names = json.loads(index.read_bytes()).get("weight_map", {}).values()
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{index} lists no weights; download it again") from error
    return [str(name) for name in names]


def hide_bars() -> None:
    """Hide the progress bars of loading, for which a run prints a line of its own.

    A terminal keeps those of downloads.
    """
    from huggingface_hub.utils import enable_progress_bars
    from transformers.utils import logging as of_transformers

    of_transformers.disable_progress_bar()
    quiet_libraries()
    if sys.stderr.isatty():
        enable_progress_bars()


def quiet_libraries() -> None:
    """Silence warnings that optional packages are missing, which nothing here uses."""
    for name in OPTIONAL:
        logging.getLogger(name).setLevel(logging.ERROR)


def align(network: nn.Module) -> None:
    """Copy weights to aligned memory. A mapped file may not be aligned, and BLAS then rounds in
    another way."""
    for parameter in network.parameters():
        parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)


def shorten_error(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def read_processor(place: str | Path, config: PretrainedConfig) -> ProcessorMixin:
    """The processor of a folder or a hub repository, whose family its configuration names.

    Raises ValueError for a family that has none, and for files that make none.
    """
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

    if type(config) not in PROCESSOR_MAPPING:
        raise ValueError(f"{type(config).__name__} has no processor of pictures")
    try:
        return without_films(PROCESSOR_MAPPING[type(config)]).from_pretrained(place)
    except (ImportError, OSError, ValueError, TypeError) as error:
        raise ValueError(f"{place} makes no processor: {shorten_error(error)}") from None


def without_films(family: type[ProcessorMixin]) -> type[ProcessorMixin]:
    """A family of processors that reads pictures alone: the part for films asks for torchvision.

    It keeps its name, which lies beside the weights when it is saved.
    """
    if FILMS not in family.get_attributes():
        return family
    from transformers import ProcessorMixin

    class WithoutFilms(ProcessorMixin):
        def __init__(self, *args: Any, **parts: Any) -> None:
            parts.pop(FILMS, None)  # some families pass on the part that they were not given
            super().__init__(*args, **parts)

    def get_attributes(cls: type) -> list[str]:
        return [name for name in family.get_attributes() if name != FILMS]

    def build(cls: type, args: Sequence, said: Mapping[str, Any]) -> ProcessorMixin:
        return family.from_args_and_dict.__func__(cls, args, {**said, FILMS: None})

    parts = {
        "get_attributes": classmethod(get_attributes),
        "from_args_and_dict": classmethod(build),
    }
    return type(family.__name__, (family, WithoutFilms), parts)


def list_ends(tokenizer: Any, configured: int | Sequence[int] | None) -> tuple[int, ...]:
    """All end tokens: those of the generation configuration, and the tokenizer's own."""
    several = [] if configured is None else values_of(configured)
    own = tokenizer.eos_token_id
    return tuple(dict.fromkeys(several if own is None else [*several, own]))


def find_turn_end(tokenizer: Any, text: str, move: str, ends: Sequence[int]) -> int | None:
    """The token that ends a turn of the assistant: the first that a chat template wrote behind
    `move`, if it is one of the model's `ends`, and otherwise the tokenizer's own.

    text: the template's text of a conversation that contains the move. None: there is no such
    token.
    """
    _, found, behind = text.rpartition(move)
    first = tokenizer(behind, add_special_tokens=False)["input_ids"][:1] if found else []
    return first[0] if first and first[0] in ends else tokenizer.eos_token_id


def films_of(place: str | Path) -> str | None:
    """The settings of films of a processor, JSON; None: it has none. Servers ask for them."""
    from transformers.utils import cached_file

    for name, part in ((OF_FILMS, None), ("processor_config.json", FILMS)):
        file = cached_file(str(place), name, _raise_exceptions_for_missing_entries=False)
        said = {} if file is None else json.loads(Path(file).read_text(encoding="utf-8"))
        if found := said if part is None else said.get(part):
            return json.dumps(found, indent=2)
    return None
