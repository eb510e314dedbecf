"""Contradictions between a loss of preferences, the rows it compares, and where they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tandem.contracts import facts_of, name_of
from tandem.legality.case import Case

# What a preference loss takes for granted: the group, what has it, the option, and why.
BESIDE: dict[str, tuple[Callable[[object], bool], str, str]] = {
    "advantage": (
        lambda facts: "pairs" in facts.gives,
        "preferred",
        "compares rows of which one is +1 and one is -1",
    ),
    "weights": (
        lambda facts: facts.per == "sample" and facts.adds_to_one,
        "sequence_mean",
        "has one value for all steps of a row",
    ),
    "importance_sampling": (
        lambda facts: facts.neutral,
        "none",
        "compares whole rows, which no weight of single steps may part",
    ),
}


def preferences_are_what_they_compare(case: Case) -> Iterator[str]:
    """A loss of whole rows refuses parts that belong to single steps."""
    if not case.compares_pairs:
        return
    for group, (fits, wanted, why) in BESIDE.items():
        if not fits(facts_of(getattr(case.algorithm, group))):
            said = f"{name_of(case.loss)} {why}; set algorithm/{group}={wanted}"
            yield f"{case.option(group)}: {said}"
    if case.algorithm.normalize_advantages:
        yield (
            f"algorithm.normalize_advantages=true moves rows that {name_of(case.loss)} does not "
            "compare; set it to false"
        )


def a_pair_is_supplied(case: Case) -> Iterator[str]:
    """A loss of pairs needs a sampling strategy that gives them."""
    if not case.compares_pairs or not case.loss_facts.whole_groups:
        return
    if "pairs" not in case.strategy.gives:
        yield (
            f"{case.option('sampling_strategy')}: {name_of(case.loss)} compares two rows of a "
            "group; set "
            "algorithm/sampling_strategy=preference_pairs (from the data) or best_and_worst (of "
            "samples)"
        )


def rows_to_compare_with_are_supplied(case: Case) -> Iterator[str]:
    """For losses mismatched rows, which come beside pairs; for advantages a greedy one."""
    gives = case.strategy.gives
    for reader in _readers(case):
        of_pairs = reader is case.loss
        if "baseline" not in gives or ("pairs" in gives) != of_pairs:
            option = "kto_kl" if of_pairs else "remax"
            yield (
                f"{case.option('sampling_strategy')}: {name_of(reader)} compares with rows that "
                "are not "
                f"trained; set algorithm/sampling_strategy={option}"
            )


def rows_to_compare_with_are_read(case: Case) -> Iterator[str]:
    """Rows to compare with need somebody who reads them, and nobody who counts them."""
    gives, readers = case.strategy.gives, _readers(case)
    counting = [name_of(e) for e in case.estimators.values() if e not in readers]
    if "baseline" not in gives:
        return
    if "pairs" not in gives and readers and counting:
        yield (
            f"{case.option('sampling_strategy')}: {counting[0]} would count the greedy answer as a "
            "sample; "
            "leave it out of algorithm.advantage"
        )
    if not readers:
        yield (
            f"{case.option('sampling_strategy')} makes rows to compare with, but nothing reads "
            "them; set "
            "algorithm/advantage=remax, algorithm/loss=kto or another algorithm/sampling_strategy"
        )


def _readers(case: Case) -> list[Callable]:
    parts = [*case.estimators.values(), case.loss]
    return [part for part in parts if "baseline" in facts_of(part).reads]


def data_has_pairs(case: Case) -> Iterator[str]:
    """A sampling strategy that shows pairs needs data that have them."""
    like = facts_of(case.data.target).pairs_in
    if "pairs" in case.strategy.reads and like is not None:
        yield (
            f"data={name_of(case.data.target)} has no chosen and rejected answers; set data={like},"
            " or data=jsonl with such rows, or sample them: algorithm=dpo_online"
        )


def pairs_are_two(case: Case) -> Iterator[str]:
    """A pair is a group of two, and mismatched answers need two prompts."""
    if "pairs" not in case.strategy.reads:
        return
    if case.plan.group_size != 2:
        yield (
            f"group_size={case.plan.group_size}: a pair is a chosen and a rejected answer; set "
            "group_size=2"
        )
    if "baseline" in case.strategy.gives and case.plan.prompts_per_step < 2:
        yield (
            f"prompts_per_step={case.plan.prompts_per_step}: mismatched answers are those to other "
            "prompts; set prompts_per_step=2 or more"
        )


def pairs_keep_their_order(case: Case) -> Iterator[str]:
    """The better answer of a pair must not depend on what the policy thinks of it."""
    if case.shaping is not None and "pairs" in case.strategy.gives:
        yield (
            f"{case.shaping} takes from the scores of pairs after "
            f"{name_of(case.algorithm.sampling_strategy)} has said which answer is the better one; "
            "set "
            "algorithm/truncation_handling=train and algorithm/kl=auto"
        )


RULES = (
    preferences_are_what_they_compare,
    a_pair_is_supplied,
    rows_to_compare_with_are_supplied,
    rows_to_compare_with_are_read,
    data_has_pairs,
    pairs_are_two,
    pairs_keep_their_order,
)
