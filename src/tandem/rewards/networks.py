"""Reward networks: loaded completely or refused, frozen, on the device of this rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from tandem.hub import align, hide_bars, locate, name_of, refuse_pickles, shorten_error

Item = TypeVar("Item")
# The device on which this rank trains; None: there is no run, as in a reward server.
TRAINS_ON: ContextVar[torch.device | None] = ContextVar("TRAINS_ON", default=None)


@contextmanager
def trains_on(device: torch.device) -> Iterator[None]:
    """Place networks with `device: auto` that are made inside on this device."""
    before = TRAINS_ON.set(device)
    try:
        yield
    finally:
        TRAINS_ON.reset(before)


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosting:
    """The device, dtype and batch size of a network."""

    batch_size: int  # rows per forward pass; affects memory only
    dtype: Literal["float32", "bfloat16", "float16"]
    device: str  # auto: that of this rank, or without a run the first GPU or the CPU
    place: torch.device = field(init=False)  # the device of the network
    torch_dtype: torch.dtype = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "torch_dtype", DTYPES[self.dtype])
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size} of a reward must be at least 1")
        try:
            object.__setattr__(self, "place", _find_place(self.device))
            torch.empty(0, device=self.place)
        except (AssertionError, RuntimeError) as error:  # unknown name, or not on this machine
            said = f"device={self.device} of a reward cannot be used: {shorten_error(error)}"
            raise ValueError(said) from None

    def parts(self, items: Sequence[Item]) -> Iterator[Sequence[Item]]:
        for start in range(0, len(items), self.batch_size):
            yield items[start : start + self.batch_size]


def _find_place(device: str) -> torch.device:
    """The device of that name; auto: see `Hosting`. Raises RuntimeError for an unknown one."""
    if device != "auto":
        return torch.device(device)
    return TRAINS_ON.get() or torch.device("cuda" if torch.cuda.is_available() else "cpu")


def network(kind: Any, path: str, key: str, hosting: Hosting) -> nn.Module:
    """A transformers model of that class from safetensors, in eval mode and without gradients.

    `key` is the setting of the path. Raises ValueError, in one line with the key, if loading fails.
    """
    hide_bars()
    refuse_pickles(path, key=key, kind=name_of(kind))
    given = {"dtype": hosting.torch_dtype, "use_safetensors": True}
    model, report = read(kind, path, key, output_loading_info=True, **given)
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"{key}={path} lacks {len(missing)} weights, such as {missing[0]}")
    align(model)
    return model.requires_grad_(False).eval().to(hosting.place)


def read(kind: Any, path: str, key: str, **given: object) -> Any:
    """A transformers object loaded from a path, without running code stored there.

    Raises ValueError if that fails.
    """
    try:
        return kind.from_pretrained(locate(path, key=key), trust_remote_code=False, **given)
    except Exception as error:  # of many libraries; all mean that the path is unusable
        said = shorten_error(error)
        raise ValueError(
            said if said.startswith(key) else f"{key}={path} cannot be loaded: {said}"
        ) from None


def fill(config: Any, weights: Mapping[str, Tensor], hosting: Hosting) -> nn.Module:
    """The vision-language model of a configuration, with weights named as in transformers.

    In eval mode and without gradients. Weights are of any shapes [...]. Raises KeyError for one
    that is missing.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    model, told = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)].from_pretrained(
        None,
        config=config,
        state_dict=dict(weights),
        dtype=hosting.torch_dtype,
        output_loading_info=True,
    )
    if told["missing_keys"]:
        raise KeyError(min(told["missing_keys"]))
    align(model)
    return model.requires_grad_(False).eval().to(hosting.place)


def tokenizer(path: str, key: str) -> Any:
    """The tokenizer at a path. transformers would silently create an empty one.

    Raises ValueError if there is none.
    """
    from transformers import AutoTokenizer

    found = read(AutoTokenizer, path, key)
    if len(found) <= len(found.all_special_tokens):
        raise ValueError(f"{key}={path} has no tokenizer; save one with the model")
    return found


def each_once(items: Sequence[Item], compute: Callable[[list[Item]], torch.Tensor]) -> torch.Tensor:
    """`compute` of each item, [N, ...], called once for equal items."""
    places = {item: place for place, item in enumerate(dict.fromkeys(items))}
    return compute(list(places))[[places[item] for item in items]]
