"""Contradictions between a loss, its old policy, and what corrects for rows of other weights."""

from __future__ import annotations

from tandem.config.composed import Composed
from tandem.contracts import facts_of

OF_SAMPLER = ("dppo", "dppo_pulled")  # losses that compare with the sampler themselves
NOTHING = "set algorithm/correction=none"


def correction(composed: Composed) -> str:
    chosen = composed.within("algorithm", "correction")
    return "none" if chosen is None else chosen.target.__name__


def proximal(composed: Composed) -> str:
    chosen = composed.within("algorithm", "proximal")
    return "recomputed" if chosen is None else chosen.target.__name__


def staleness_is_paid_once(composed: Composed) -> str | None:
    name, loss = correction(composed), composed.policy_loss
    if name == "none":
        return None
    if proximal(composed) == "bypass":
        return (
            f"algorithm/correction={name} beside algorithm/proximal=bypass would weigh the way "
            f"from the sampler twice; {NOTHING} or algorithm/proximal=recomputed"
        )
    if loss is not None and loss.target.__name__ in OF_SAMPLER:
        return (
            f"algorithm/correction={name}: {loss.target.__name__} compares with the sampler "
            f"itself; {NOTHING}"
        )
    return None


def what_is_given_has_no_sampler(composed: Composed) -> str | None:
    if not composed.is_offline:
        return None
    if correction(composed) != "none":
        return f"algorithm/correction={correction(composed)}: nothing is sampled; {NOTHING}"
    if proximal(composed) in ("bypass", "log_linear"):
        return (
            f"algorithm/proximal={proximal(composed)}: nothing is sampled; set "
            "algorithm/proximal=recomputed"
        )
    return None


def a_ratio_has_an_old_policy(composed: Composed) -> str | None:
    loss = composed.policy_loss
    if (
        proximal(composed) != "current"
        or loss is None
        or "old_logp" not in facts_of(loss.target).reads
    ):
        return None
    return (
        f"algorithm/proximal=current: the ratio of {loss.target.__name__} would always be 1; set "
        "algorithm/proximal=recomputed, or algorithm/loss=reinforce"
    )
