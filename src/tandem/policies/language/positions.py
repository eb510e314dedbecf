"""Positions of a language model: how long a row may be."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from torch import nn

log = logging.getLogger(__name__)


def positions(model: nn.Module) -> int | None:
    """The maximum number of tokens of a row; None: unlimited."""
    limits = [own_positions(model), original_positions(model)]
    return min((limit for limit in limits if limit is not None), default=None)


def own_positions(model: nn.Module) -> int | None:
    """The maximum of the model's configuration."""
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def original_positions(model: nn.Module) -> int | None:
    """The length up to which longrope (arXiv:2402.13753) has one set of frequencies; None: another
    kind. A longer row changes those of its whole pass: of shorter rows, and behind cached keys.
    """
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    kinds = [rope, *(own for own in rope.values() if isinstance(own, Mapping))]  # of layers
    longrope = [kind for kind in kinds if kind.get("rope_type") == "longrope"]
    return min((kind["original_max_position_embeddings"] for kind in longrope), default=None)


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
