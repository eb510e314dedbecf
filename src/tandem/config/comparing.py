"""Contradictions between an advantage and the samples that it is to compare."""

from __future__ import annotations

from tandem.config.binding import Call
from tandem.config.composed import Composed
from tandem.config.given import shapes
from tandem.contracts import facts_of

COMPARING = (
    "group_relative leave_one_out opo maxrl gpg by_part gdpo best_gap pass_at_k pkpo_centred"
)
PARTS, SETS = "tandem.advantages.parts", "tandem.advantages.passk"


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
    reading = [
        e.target.__name__ for e in composed.estimators if "old_values" in facts_of(e.target).reads
    ]
    if critic is None and reading:
        return (
            f"algorithm.critic=null: {reading[0]} reads the values of a critic; take the one of "
            "algorithm=ppo, or another algorithm/advantage"
        )
    if critic is not None and not reading:
        return (
            "algorithm.critic learns values that no advantage reads; set algorithm.critic=null or "
            "algorithm/advantage=gae"
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
    shaping = shapes(composed)
    by_part = [e.target.__name__ for e in composed.estimators if e.target.__module__ == PARTS]
    if shaping is None or not by_part:
        return None
    return (
        f"{shaping} lowers the sum of the rewards, which {by_part[0]} does not read; set "
        "algorithm/truncated=train or mask and algorithm/kl=auto"
    )


def rewards_are_weighed_once(composed: Composed) -> str | None:
    """Estimators of single rewards have weights of their own."""
    for key, estimator in composed.placed_estimators.items():
        if estimator.target.__module__ != PARTS or estimator.arguments.get("weights") is not None:
            continue
        for name, reward in composed.components["reward"].items():
            if (weight := reward.arguments.get("weight", 1.0)) != 1.0:
                return (
                    f"reward.{name}.weight={weight}: {estimator.target.__name__} compares each "
                    "reward by itself and reads no weight of the sum; set it to 1, and "
                    f"{key}.weights={{{name}:{weight},...}}"
                )
    return None


NOT_NEGATIVE = ("maxrl", "pass_at_k")  # estimators that only rewards of 0 and more make sense to


def scores_stay_in_their_domain(composed: Composed) -> str | None:
    names = [e.target.__name__ for e in composed.estimators]
    strict = next((name for name in names if name in NOT_NEGATIVE), None)
    if strict is None:
        return None
    ranged = [n for n, r in composed.components["reward"].items() if r.arguments.get("range")]
    broken = shapes(composed) or (f"reward.{ranged[0]}.range" if ranged else None)
    if broken is None:
        return None
    return (
        f"{broken} makes scores negative, and {strict} compares rewards of 0 and more; leave it "
        "out, or set algorithm/advantage=group_relative"
    )
