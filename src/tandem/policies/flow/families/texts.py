"""Texts of several lengths as conditions of one: padded rows and a mask of what was read."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from tandem.policies.flow.records import Condition


def padded(states: Tensor, most: int) -> Condition:
    """[L, D] -> states [most, D], mask [most]: the bits of a row must not depend on its
    neighbours."""
    read = torch.arange(most, device=states.device) < len(states)
    return {"states": pad(states, (0, 0, 0, most - len(states))), "mask": read}


def unpadded(condition: Condition) -> list[Tensor]:
    """The rows as they were, [L, D] of each; on the meta device, which has no lengths, all of
    them."""
    states, mask = condition["states"], condition["mask"]
    lengths = [mask.shape[1]] * len(mask) if mask.is_meta else mask.sum(1).tolist()
    return [row[:length] for row, length in zip(states, lengths, strict=True)]


def blank(rows: int, most: int, width: int) -> Condition:
    """Conditions of so many texts without numbers, on the meta device."""
    return {
        "states": torch.empty(rows, most, width, device="meta"),
        "mask": torch.ones(rows, most, dtype=torch.bool, device="meta"),
    }
