"""Writes of a part on the tensors that it is given, which others read.

A write in place raises the version of a tensor. One through `.numpy()` or `.data` does not, so the
first call of a part from outside the package also compares contents. Parts of the package are
tested, and later calls cost nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from weakref import WeakSet

import torch
from torch import Tensor

from tandem.contracts.parts import fields_of, is_foreign, iterate_innermost, unwrap_partial

COMPARED: WeakSet = WeakSet()  # functions and classes of parts whose first call was compared


class Given:
    """The tensors of records before a part is called with them. Of any shape [...]."""

    def __init__(self, part: Callable, records: Sequence[object]) -> None:
        self.records, self.contents = records, None
        self.versions = versions_of(records)
        owners = {_owner(one) for _, one in iterate_innermost(part, "") if is_foreign(one)}
        if not owners <= set(COMPARED):
            COMPARED.update(owners)
            self.contents = _contents_of(records)

    def list_written(self) -> list[str]:
        """The names of the tensors that were written on since."""
        changed = self.versions.items() - versions_of(self.records).items()
        if self.contents is not None:
            changed |= self.contents.items() - _contents_of(self.records).items()
        return sorted({place.partition(".")[2] or "an argument" for place, _ in changed})

    def fault(self) -> str | None:
        """What is wrong with a call that wrote on them; None: it did not."""
        if not (names := self.list_written()):
            return None
        return f"writes on {', '.join(names)}, which others read; compute a tensor of its own"


def versions_of(records: Sequence[object]) -> dict[str, int]:
    """The place of each tensor, "NUMBER_OF_RECORD.NAME" -> how often it was written on.

    Records and mappings in a record are walked, as by `map_fields`. Tensors of any shape [...].
    """
    # Inference tensors have no version.
    return {place: x._version for place, x in _tensors(records) if not x.is_inference()}


def _contents_of(records: Sequence[object]) -> dict[str, int]:
    """The place of each tensor -> a hash of its bytes. Tensors of any shape [...]."""
    found = {}
    for place, x in _tensors(records):
        flat = x.detach().to("cpu", copy=False).contiguous().view(-1)
        found[place] = hash(flat.view(torch.uint8).numpy().tobytes())
    return found


def _tensors(records: Sequence[object]) -> list[tuple[str, Tensor]]:
    found: list[tuple[str, Tensor]] = []
    held: list[tuple[object, object]] = list(enumerate(records))
    while held:
        place, x = held.pop()
        if isinstance(x, Tensor):
            found.append((str(place), x))
            continue
        if is_dataclass(x):
            x = fields_of(x)
        if isinstance(x, Mapping):
            held += [(f"{place}.{name}", part) for name, part in x.items()]
    return found


def _owner(part: Callable) -> Callable:
    owner = unwrap_partial(part)[0]
    return owner if inspect.isfunction(owner) else type(owner)
