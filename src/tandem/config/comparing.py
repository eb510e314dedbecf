"""Contradictions between an advantage and the samples that it is to compare."""

from __future__ import annotations

from tandem.config.binding import Call
from tandem.config.composed import Composed
from tandem.types import needs_of

COMPARING = (
    "group_relative grpo_vectorized leave_one_out opo maxrl gpg by_part gdpo "
    "best_gap pass_at_k pkpo_centred"
)
PARTS, SETS = "tandem.advantages.parts", "tandem.advantages.passk"
SHAPING = ("penalise", "overlong")


def groups_have_rivals(composed: Composed) -> str | None:
    size = composed.settings.group_size
    comparing = [e.target.__name__ for e in composed.estimators if _compares(e)]
    if size >= 2 or not comparing:
        return None
    return (
        f"group_size={size}: {comparing[0]} compares the samples of a group; "
        "set group_size=2 or more"
    )


def values_have_a_critic(composed: Composed) -> str | None:
    critic = composed.within("algorithm", "critic")
    reading = [e.target.__name__ for e in composed.estimators if "old_values" in needs_of(e.target)]
    if critic is None and reading:
        return (
            f"algorithm/advantage: {reading[0]} reads the values of a critic, and there is none; "
            "set algorithm=ppo, which has one"
        )
    return None


def _compares(estimator: Call) -> bool:
    return estimator.target.__name__ in COMPARING.split()


def sets_fit_into_groups(composed: Composed) -> str | None:
    size = composed.settings.group_size
    of_sets = [e for e in composed.estimators if e.target.__module__ == SETS]
    for estimator in of_sets:
        k = estimator.arguments.get("k", 1)
        if not 1 <= k <= size:
            return (
                f"k={k} of {estimator.target.__name__}: a group of group_size={size} has no set of "
                f"{k} samples; set k to 1 ... {size}"
            )
        if k == size and estimator.target.__name__ == "pass_at_k":
            return (
                f"k={k} of pass_at_k: all of a group of group_size={size} pass or none does; "
                f"set k to {size - 1} or less"
            )
    return None


def what_shaping_takes_is_read(composed: Composed) -> str | None:
    """A penalty lowers the total, which estimators of single rewards never read."""
    truncated = composed.within("algorithm", "truncated")
    by_part = [e.target.__name__ for e in composed.estimators if e.target.__module__ == PARTS]
    if truncated is None or not by_part or truncated.target.__name__ not in SHAPING:
        return None
    return (
        f"algorithm/truncated={truncated.target.__name__} lowers the sum of the rewards, which "
        f"{by_part[0]} does not read; set algorithm/truncated=train or mask"
    )


def groups_stand_side_by_side(composed: Composed) -> str | None:
    names = [e.target.__name__ for e in composed.estimators]
    collect = composed.within("algorithm", "collect")
    if "grpo_vectorized" not in names or collect is None:
        return None
    if collect.target.__name__ != "dynamic_sampling":
        return None
    return (
        "algorithm/collect=dynamic_sampling keeps parts of what was sampled, but grpo_vectorized "
        "needs whole groups side by side; set algorithm/advantage=group_relative"
    )
