"""Positions of a language model: how long a row may be."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from tandem.policies.language.records import Sampling

log = logging.getLogger(__name__)


def positions(model: nn.Module) -> int | None:
    """The maximum number of tokens of a row; None: unlimited."""
    limits = [own_positions(model), original_positions(model)]
    return min((limit for limit in limits if limit is not None), default=None)


def own_positions(model: nn.Module) -> int | None:
    """The maximum of the model's configuration, without the first positions of a table that keeps
    them for padding (RoBERTa, MPNet): positions count from the one behind them."""
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    named = [part for name, part in model.named_modules() if name.endswith("position_embeddings")]
    tables = [part for part in named if isinstance(part, nn.Embedding)]
    kept = [table.padding_idx + 1 for table in tables if table.padding_idx is not None]
    return most if most is None else most - max(kept, default=0)


def original_positions(model: nn.Module) -> int | None:
    """The length up to which longrope (arXiv:2402.13753) has one set of frequencies; None: another
    kind. A longer row changes those of its whole pass: of shorter rows, and behind cached keys.
    """
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    kinds = [rope, *(own for own in rope.values() if isinstance(own, Mapping))]  # of layers
    longrope = [kind for kind in kinds if kind.get("rope_type") == "longrope"]
    return min((kind["original_max_position_embeddings"] for kind in longrope), default=None)


def longest_prompt(positions: int | None, samplings: Sequence[Sampling]) -> int | None:
    """The most tokens of a prompt that all of these can answer; None: unlimited.

    Raises ValueError for answers that leave no room for a prompt.
    """
    limits = [x.max_prompt_tokens for x in samplings if x.max_prompt_tokens is not None]
    if positions is not None:
        most = max(x.max_new_tokens for x in samplings)
        limits.append(positions - most)
        if most >= positions:
            raise ValueError(
                f"rollout.max_new_tokens={most} leaves no room for a prompt in the {positions} "
                "positions of the model; lower it"
            )
    return min(limits, default=None)


def warn_of_positions(model: nn.Module) -> None:
    """Warn where rows may only use a part of the model's positions."""
    if (most := positions(model)) != (own := own_positions(model)):
        log.warning(
            "%s: rows have up to %d tokens instead of %d: longrope rotates all rows of a pass by "
            "the longest of them; start engines with --max-model-len %d at most",
            type(model).__name__,
            most,
            own,
            most,
        )
