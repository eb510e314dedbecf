"""Contradictions between a preference loss, the rows it compares, and their source."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tandem.contracts import facts_of, name_of
from tandem.legality.case import Case

# What a preference loss requires: by group, the test, the option to set, and why.
BESIDE: dict[str, tuple[Callable[[object], bool], str, str]] = {
    "advantage": (
        lambda facts: "pairs" in facts.gives,
        "preferred",
        "compares a row of +1 with a row of -1",
    ),
    "weights": (
        lambda facts: facts.per == "sample" and facts.adds_to_one,
        "sequence_mean",
        "has one value for all steps of a row",
    ),
    "importance_sampling": (
        lambda facts: facts.neutral,
        "none",
        "compares whole rows, without weights of steps",
    ),
}


def preferences_are_what_they_compare(case: Case) -> Iterator[str]:
    """A loss of whole rows excludes parts that act on single steps."""
    if (loss := case.preference_loss) is None:
        return
    for group, (fits, wanted, why) in BESIDE.items():
        if not fits(facts_of(case.parts[group])):
            said = f"{name_of(loss)} {why}; set algorithm/{group}={wanted}"
            yield f"{case.option(group)}: {said}"
    if case.algorithm.normalize_advantages:
        yield (
            f"algorithm.normalize_advantages=true changes the labels +1 and -1 of "
            f"{name_of(loss)}; set it to false"
        )


def a_pair_is_supplied(case: Case) -> Iterator[str]:
    """A loss of pairs needs a sampling strategy that gives them."""
    loss = case.preference_loss
    if loss is None or not facts_of(loss).whole_groups:
        return
    if "pairs" not in case.strategy.gives:
        yield (
            f"{case.option('sampling_strategy')}: {name_of(loss)} compares two rows of a "
            "group; set algorithm/sampling_strategy=preference_pairs (from data) or "
            "best_and_worst (of samples)"
        )


def rows_to_compare_with_are_supplied(case: Case) -> Iterator[str]:
    """A loss needs mismatched rows as baseline, an advantage a greedy answer."""
    gives = case.strategy.gives
    for reader in _readers(case):
        of_pairs = reader not in case.estimators.values()
        if "baseline" not in gives or ("pairs" in gives) != of_pairs:
            option = "kto_kl" if of_pairs else "remax"
            yield (
                f"{case.option('sampling_strategy')}: {name_of(reader)} compares with rows that "
                f"are not trained; set algorithm/sampling_strategy={option}"
            )


def rows_to_compare_with_are_read(case: Case) -> Iterator[str]:
    """Baseline rows need a reader, and no advantage that would count them as samples."""
    gives, readers = case.strategy.gives, _readers(case)
    counting = [name_of(e) for e in case.estimators.values() if e not in readers]
    if "baseline" not in gives:
        return
    if "pairs" not in gives and readers and counting:
        yield (
            f"{case.option('sampling_strategy')}: {counting[0]} would count the greedy answer as a "
            "sample; leave it out of algorithm.advantage"
        )
    if not readers:
        yield (
            f"{case.option('sampling_strategy')} makes baseline rows, but nothing reads them; "
            "set algorithm/advantage=remax, algorithm/loss=kto or another "
            "algorithm/sampling_strategy"
        )


def _readers(case: Case) -> list[Callable]:
    parts = [*case.estimators.values(), *case.losses.values()]
    return [part for part in parts if "baseline" in facts_of(part).reads]


def data_has_pairs(case: Case) -> Iterator[str]:
    """A sampling strategy that reads pairs needs data with pairs."""
    like = facts_of(case.data.target).pairs_in
    if "pairs" in case.strategy.reads and like is not None:
        yield (
            f"data={name_of(case.data.target)} has no chosen and rejected answers; set data={like},"
            " data=jsonl with such rows, or algorithm=dpo_online, which samples them"
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
    """The better answer of a pair must not depend on the policy."""
    if case.shaping is not None and "pairs" in case.strategy.gives:
        yield (
            f"{case.shaping} lowers scores after "
            f"{name_of(case.algorithm.sampling_strategy)} has chosen the better answer of a pair; "
            "set algorithm/truncation_handling=train and algorithm/kl=auto"
        )


def pairs_are_trained_whole(case: Case) -> Iterator[str]:
    """A sampled pair is chosen from all samples, also from those that would not be trained on."""
    handling = facts_of(case.algorithm.truncation_handling)
    judges = (case.algorithm.sampling_strategy, *case.estimators.values())
    judge = next((part for part in judges if "pairs" in facts_of(part).gives), None)
    if judge is None or not case.samples or handling.neutral or handling.lowers_scores:
        return
    yield (
        f"{case.option('truncation_handling')}: {name_of(judge)} chooses a pair from all samples, "
        "and a row of it that is not trained on leaves the other without its rival; set "
        "algorithm/truncation_handling=train"
    )


RULES = (
    preferences_are_what_they_compare,
    a_pair_is_supplied,
    rows_to_compare_with_are_supplied,
    rows_to_compare_with_are_read,
    data_has_pairs,
    pairs_are_two,
    pairs_keep_their_order,
    pairs_are_trained_whole,
)
