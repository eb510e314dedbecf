"""Contradictions between a loss of preferences, the rows it compares, and where they come from."""

from __future__ import annotations

from tandem.config.binding import Call
from tandem.config.composed import Composed
from tandem.contracts import facts_of
from tandem.losses.pairs import reward_of

# Data without pairs -> the like of it that has some.
WITHOUT_PAIRS = dict.fromkeys(("sort_ladder", "sort_letters", "reasoning_gym"), "sort_pairs")
WITHOUT_PAIRS |= {"shapes": "shapes_pairs"}
# What a preference loss takes for granted: the group, the option that gives it, and why.
BESIDE = {
    "advantage": ("preferred", "compares rows of which one is +1 and one is -1"),
    "weights": ("sequence_mean", "has one value for all steps of a row"),
    "correction": ("none", "compares whole rows, which no weight of single steps may part"),
}


def preferences(composed: Composed) -> Call | None:
    """The loss, if it is one of preferences."""
    loss = composed.policy_loss
    return None if loss is None or reward_of(loss.target) is None else loss


def preferences_are_what_they_compare(composed: Composed) -> str | None:
    loss = preferences(composed)
    if loss is None:
        return None
    for group, (wanted, why) in BESIDE.items():
        chosen = composed.within("algorithm", group)
        if chosen is not None and chosen.target.__name__ != wanted:
            return (
                f"algorithm/{group}={chosen.target.__name__}: {loss.target.__name__} {why}; "
                f"set algorithm/{group}={wanted}"
            )
    if composed.components["algorithm"].arguments.get("normalize_advantages"):
        return (
            f"algorithm.normalize_advantages=true moves rows that {loss.target.__name__} does not "
            "compare; set it to false"
        )
    return None


def a_pair_is_supplied(composed: Composed) -> str | None:
    loss, collect = preferences(composed), composed.within("algorithm", "collect")
    if loss is None or collect is None or not facts_of(loss.target).whole_groups:
        return None
    if "pairs" in facts_of(collect.target).gives:
        return None
    return (
        f"algorithm/collect={collect.target.__name__}: {loss.target.__name__} compares two rows of "
        "a group; set algorithm/collect=preference_pairs (from the data) or best_and_worst (of "
        "samples)"
    )


def rows_to_compare_with_are_supplied_and_read(composed: Composed) -> str | None:
    collect, loss = composed.within("algorithm", "collect"), composed.policy_loss
    if collect is None or loss is None:
        return None
    supplied, name = facts_of(collect.target).gives, collect.target.__name__
    readers = [
        part for part in (*composed.estimators, loss) if "baseline" in facts_of(part.target).reads
    ]
    for reader in readers:
        # Mismatched rows come beside pairs, a greedy one beside samples.
        if "baseline" not in supplied or ("pairs" in supplied) != (reader is loss):
            option = "mismatched_pairs" if reader is loss else "greedy_baseline"
            return (
                f"algorithm/collect={name}: {reader.target.__name__} compares with rows that are "
                f"not trained; set algorithm/collect={option}"
            )
    greedy = "baseline" in supplied and "pairs" not in supplied
    counting = [e.target.__name__ for e in composed.estimators if e not in readers]
    if greedy and readers and counting:
        return (
            f"algorithm/collect={name}: {counting[0]} would count the greedy answer as a sample; "
            "leave it out of algorithm.advantage"
        )
    if "baseline" in supplied and not readers:
        return (
            f"algorithm/collect={name} makes rows to compare with, but nothing reads them; set "
            "algorithm/advantage=remax, algorithm/loss=kto or another algorithm/collect"
        )
    return None


def data_has_pairs(composed: Composed) -> str | None:
    collect, data = composed.within("algorithm", "collect"), composed.components["data"]
    if collect is None or "pairs" not in facts_of(collect.target).reads:
        return None
    if not isinstance(data, Call) or data.target.__name__ not in WITHOUT_PAIRS:
        return None
    name = data.target.__name__
    return (
        f"data={name} has no chosen and rejected answers; set data={WITHOUT_PAIRS[name]}, or "
        "data=jsonl with such rows, or sample them: algorithm=dpo_online"
    )


def pairs_are_two(composed: Composed) -> str | None:
    collect, settings = composed.within("algorithm", "collect"), composed.settings
    if collect is None or "pairs" not in facts_of(collect.target).reads:
        return None
    if settings.group_size != 2:
        return (
            f"group_size={settings.group_size}: a pair is a chosen and a rejected answer; set "
            "group_size=2"
        )
    if "baseline" in facts_of(collect.target).gives and settings.prompts_per_step < 2:
        return (
            f"prompts_per_step={settings.prompts_per_step}: mismatched answers are those to other "
            "prompts; set prompts_per_step=2 or more"
        )
    return None


def preferences_have_a_temperature(composed: Composed) -> str | None:
    loss = preferences(composed)
    if loss is None:
        return None
    beta, smoothing = (loss.arguments.get(name) for name in ("beta", "label_smoothing"))
    if beta is not None and beta <= 0:
        return f"algorithm.loss.beta={beta}: must be positive"
    if smoothing is not None and not 0 <= smoothing < 0.5:
        return f"algorithm.loss.label_smoothing={smoothing}: a part of the labels, below one half"
    if smoothing == 0 and loss.target.__name__ == "exo":
        return "algorithm.loss.label_smoothing=0: exo needs more than 0; set 1e-3"
    return None


PAIR_RULES = (
    preferences_are_what_they_compare,
    a_pair_is_supplied,
    rows_to_compare_with_are_supplied_and_read,
    data_has_pairs,
    pairs_are_two,
    preferences_have_a_temperature,
)
