"""Contradictions between who samples and what is read of samples."""

from __future__ import annotations

from tandem.config.binding import Call
from tandem.config.composed import Composed


def engine(composed: Composed) -> Call | None:
    """Whoever samples with weights of its own."""
    return composed.within("rollout", "engine")


def entropy_is_known(composed: Composed) -> str | None:
    if engine(composed) is None or composed.number("algorithm.entropy.target") is None:
        return None
    return (
        "algorithm.entropy.target is compared with the entropy of what was sampled from, which a "
        "server does not report; set it to null, or rollout=local"
    )


ENGINE_RULES = (entropy_is_known,)
