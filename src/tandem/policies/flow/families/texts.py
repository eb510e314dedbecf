"""Padding of text states to one length, with a mask of the tokens."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from tandem.policies.flow.records import Condition


def pad_states(states: Tensor, most: int) -> Condition:
    """[L, D] -> states [most, D], mask [most]; a fixed length, so that a row does not depend on
    its neighbours."""
    read = torch.arange(most, device=states.device) < len(states)
    return {"states": pad(states, (0, 0, 0, most - len(states))), "mask": read}


def unpad_states(condition: Condition) -> list[Tensor]:
    """The rows without padding, [L, D] each; on the meta device, which has no values, the full
    length."""
    states, mask = condition["states"], condition["mask"]
    lengths = [mask.shape[1]] * len(mask) if mask.is_meta else mask.sum(1).tolist()
    return [row[:length] for row, length in zip(states, lengths, strict=True)]


def blank(rows: int, most: int, width: int) -> Condition:
    """Conditions of `rows` texts on the meta device."""
    return {
        "states": torch.empty(rows, most, width, device="meta"),
        "mask": torch.ones(rows, most, dtype=torch.bool, device="meta"),
    }
