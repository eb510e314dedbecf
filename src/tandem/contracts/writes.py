"""Writes of a part on the tensors that it is given, which others read.

A write in place raises the version of a tensor. One through `.numpy()` or `.data` does not, so the
first call of a part from outside the package also compares contents. Parts of the package are
tested. Each other call costs two walks over the records, which read the versions of their tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from weakref import WeakSet

import torch
from torch import Tensor

from tandem.contracts.parts import fields_of, is_foreign, iterate_innermost, kind_of

COMPARED: WeakSet = WeakSet()  # kinds of parts whose first call was compared


class Given:
    """The tensors of records before a part is called with them. Of any shape [...]."""

    def __init__(self, part: Callable, records: Sequence[object]) -> None:
        kinds = {kind_of(one) for _, one in iterate_innermost(part, "") if is_foreign(one)}
        self.records, self.by_content = records, not COMPARED.issuperset(kinds)
        COMPARED.update(kinds)
        self.before = read_states(records, self.by_content)

    def fault(self) -> str | None:
        """What is wrong with a call that wrote on them; None: it did not."""
        written = self.before.items() - read_states(self.records, self.by_content).items()
        if not written:
            return None
        names = sorted({place.partition(".")[2] or "an argument" for place, _ in written})
        return f"writes on {', '.join(names)}, which others read; compute a tensor of its own"


def forget_comparison(part: Callable) -> None:
    """Compare contents at the next call of a part again: the last one was a trial."""
    COMPARED.difference_update([kind_of(one) for _, one in iterate_innermost(part, "")])


def read_states(records: Sequence[object], by_content: bool) -> dict[str, tuple[int, int]]:
    """The place of each tensor, "NUMBER_OF_RECORD.NAME" -> how often it was written on, and a hash
    of its bytes if asked for; one on the meta device has none.

    Records and mappings in a record are walked, as by `map_fields`. Tensors of any shape [...].
    """
    found: dict[str, tuple[int, int]] = {}
    held: list[tuple[object, object]] = list(enumerate(records))
    while held:
        place, x = held.pop()
        if isinstance(x, Tensor):
            content = 0
            if by_content and not x.is_meta:
                flat = x.detach().cpu().contiguous().view(-1)
                content = hash(flat.view(torch.uint8).numpy().tobytes())
            version = 0 if x.is_inference() else x._version  # inference tensors have none
            found[str(place)] = version, content
            continue
        if is_dataclass(x):
            x = fields_of(x)
        if isinstance(x, Mapping):
            held += [(f"{place}.{name}", part) for name, part in x.items()]
    return found
