"""Prompt embeddings: encoded once and cached on disk under a hash of the content."""

from __future__ import annotations

import hashlib
import os
import sys
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path

import torch
from torch import Tensor

from tandem.contracts.wrong_output import wrong_value
from tandem.policies.flow.adapter import Adapter
from tandem.policies.flow.records import Condition, PromptInput
from tandem.types import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEmbedding:
    """The conditions of the rows of a forward pass, with negative ones for guidance."""

    prompted: Condition  # name -> [N, ...]
    unprompted: Condition | None  # None: without a negative prompt


class PromptEmbeddingCache:
    """A cache of conditions. New prompts are encoded on first use."""

    def __init__(
        self, adapter: Adapter, *, cache: Path | None, negative: str | None, keep: int = 512
    ) -> None:
        """`negative`: the default negative prompt, or None; `keep`: conditions in memory.

        `fleeting`: the texts of each iteration are new, so none is written to disk, and all stay in
        memory until `evict`.
        """
        self.adapter, self.cache, self.negative, self.keep = adapter, cache, negative, keep
        self.fleeting = False
        self.recent: OrderedDict[PromptInput, Condition] = OrderedDict()

    @cached_property
    def folder(self) -> Path | None:
        """The cache folder of these encoders, known after `load`; None: no cache on disk."""
        unwritten = self.cache is None or self.fleeting
        name = None if unwritten else self.adapter.fingerprint()
        return None if name is None else self.cache / "prompts" / name

    def prepare(self, inputs: Sequence[PromptInput], device: torch.device) -> None:
        """Encode what is neither in memory nor on disk, loading the encoders once."""
        new = [one for one in dict.fromkeys(inputs) if one not in self.recent]
        if new and self.folder is not None:
            new = [one for one in new if not self._file(one).is_file()]
        if not new:
            return
        for one, condition in zip_longest(new, self.adapter.encode(new, device) or ()):
            named = condition.values() if isinstance(condition, Mapping) else ()
            if one is None or not named or not all(isinstance(x, Tensor) for x in named):
                want = f"{len(new)} dicts of tensors, one for each input"
                raise wrong_value(self.adapter.encode, condition, want)
            if self.folder is not None:
                write(self._file(one), condition)
            self._remember(one, condition)

    def inputs(self, prompts: Sequence[Prompt], *, guided: bool) -> list[PromptInput]:
        """All inputs to encode for these prompts."""
        negatives = [self.negative_of(prompt) for prompt in prompts] if guided else []
        return [*map(input_of, prompts), *(one for one in negatives if one is not None)]

    def rows(
        self, prompts: Sequence[Prompt], device: torch.device, *, guided: bool
    ) -> PromptEmbedding:
        """The conditions of the rows of one forward pass; negative ones only if `guided`."""
        negatives = [self.negative_of(prompt) for prompt in prompts] if guided else [None]
        missing = None in negatives
        return PromptEmbedding(
            prompted=self.stack([*map(input_of, prompts)], device),
            unprompted=None if missing else self.stack(negatives, device),
        )

    def negative_of(self, prompt: Prompt) -> PromptInput | None:
        """The negative prompt, or None."""
        text = prompt.fields.get("negative_prompt", self.negative)
        if text is None:
            return None
        size = prompt.size if prompt.images else None
        return PromptInput(text=text, images=prompt.images, negative=True, size=size)

    def stack(self, inputs: Sequence[PromptInput], device: torch.device) -> Condition:
        """The embeddings of inputs, stacked to one condition on `device`."""
        self.prepare(inputs, device)
        found = {one: self._find(one) for one in dict.fromkeys(inputs)}
        places = {one: place for place, one in enumerate(found)}
        row = torch.tensor([places[one] for one in inputs], device=device)
        columns = {name: [x[name] for x in found.values()] for name in found[inputs[0]]}
        for name, column in columns.items():
            if len({*map(Tensor.size, column)}) > 1:
                odd = next(x for x in column if x.shape != column[0].shape)
                want = f"the same shape of {name!r} for every input, such as {[*column[0].shape]}"
                raise wrong_value(self.adapter.encode, odd, want)
        return {name: torch.stack(column).to(device)[row] for name, column in columns.items()}

    def evict(self) -> None:
        """Forget fleeting texts that will not be read again, but the `keep` that were read last.

        Not while an iteration reads its texts in turn: each would be encoded again, and the
        encoders loaded for it.
        """
        while len(self.recent) > self.keep:
            self.recent.popitem(last=False)

    def _find(self, one: PromptInput) -> Condition:
        from safetensors.torch import load_file

        if one in self.recent:
            self.recent.move_to_end(one)
            return self.recent[one]
        condition = load_file(self._file(one))
        self._remember(one, condition)
        return condition

    def _remember(self, one: PromptInput, condition: Condition) -> None:
        self.recent[one] = {name: x.cpu() for name, x in condition.items()}
        # Never evict the only copy.
        if self.folder is not None and len(self.recent) > self.keep:
            self.recent.popitem(last=False)

    def _file(self, one: PromptInput) -> Path:
        return self.folder / f"{one.name}.safetensors"


def input_of(prompt: Prompt) -> PromptInput:
    """The encoder input of a prompt. Raises ValueError for a chat."""
    if prompt.text is None:
        raise ValueError(
            f"prompt {prompt.id} of {prompt.source} is a chat, but this model needs a text"
        )
    size = prompt.size if prompt.images else None  # without images the size has no effect
    # Families insert images themselves.
    return PromptInput(text=prompt.plain_text, images=prompt.images, size=size)


def write(file: Path, condition: Condition) -> None:
    """Write a file atomically; another process may write the same one."""
    from safetensors.torch import save_file

    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f"{file.name}.{os.getpid()}.{uuid.uuid4().hex}")
    save_file({name: x.cpu().contiguous() for name, x in condition.items()}, temporary)
    temporary.replace(file)


def fingerprint_of(folder: Path, parts: Sequence[str], *settings: object) -> str:
    """A hash of the files of these subfolders, and of settings.

    Of a large file only its size and 64 pieces are hashed: training changes all of its weights.
    """
    digest = hashlib.sha256(repr(settings).encode())
    for part in parts:
        for file in sorted(p for p in (folder / part).rglob("*") if p.is_file()):
            digest.update(f"{file.relative_to(folder)} {file.stat().st_size}".encode())
            for piece in pieces(file):
                digest.update(piece)
    return digest.hexdigest()[:32]


def read_code(kind: type) -> list[bytes] | None:
    """The contents of the files that define a class and its bases; None: one is in no file."""
    modules = [vars(sys.modules[base.__module__]) for base in kind.__mro__ if base is not object]
    files = dict.fromkeys(module.get("__file__") for module in modules)
    return None if None in files else [Path(file).read_bytes() for file in files]


def pieces(file: Path, *, count: int = 64, size: int = 2**16):
    """A small file as a whole; of a large one evenly spaced pieces, including both ends."""
    length = file.stat().st_size
    with file.open("rb") as stream:
        if length <= count * size:
            yield stream.read()
            return
        for piece in range(count):
            stream.seek(piece * (length - size) // (count - 1))
            yield stream.read(size)
