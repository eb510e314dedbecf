"""Contradictions between who samples, how old its weights are, and what is read of samples."""

from __future__ import annotations

from tandem.config.binding import Call
from tandem.config.building import make
from tandem.config.composed import Composed


def engine(composed: Composed) -> Call | None:
    """Whoever samples with weights of its own."""
    return composed.within("rollout", "engine")


def old_samples_are_corrected_for(composed: Composed) -> str | None:
    every = composed.number("rollout.engine.sync_every")
    if every is None or every == 1 or composed.is_offline:
        return None
    if make(composed.components["algorithm"]).corrects:
        return None
    return (
        f"rollout.engine.sync_every={every}: samples would be of older weights, and nothing "
        "corrects for it; set algorithm/correction=token_tis or staleness_decay, or "
        "rollout.engine.sync_every=1"
    )


def entropy_is_known(composed: Composed) -> str | None:
    if engine(composed) is None or composed.number("algorithm.entropy.target") is None:
        return None
    return (
        "algorithm.entropy.target is compared with the entropy of what was sampled from, which a "
        "server does not report; set it to null, or rollout=local"
    )


ENGINE_RULES = (old_samples_are_corrected_for, entropy_is_known)
