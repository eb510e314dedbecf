"""Contradictions of samples that are written and then painted."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.contracts import batch_statistics_of, facts_of, iterate_innermost, name_of, parts_of
from tandem.legality.case import Case
from tandem.legality.units import without_unit
from tandem.types import SEGMENTS


def segments_are_those_of_the_model(case: Case) -> Iterator[str]:
    """Parts for single segments belong to a model that has some."""
    if case.is_chain:
        if case.algorithm.segments.keys() != {*SEGMENTS}:
            yield f"algorithm.segments: a chain has {' and '.join(SEGMENTS)}; name both"
        return
    made = f"model={case.plan.choices['model']} makes samples of one kind"
    if case.algorithm.segments:
        yield f"algorithm.segments: {made}; leave them out, or set model=tiny_chain"
    for group in ("loss", "kl"):
        if any(facts_of(part).segments for part in parts_of(getattr(case.algorithm, group))):
            yield (
                f"algorithm.{group} has a part for texts and one for pictures, and {made}; set "
                f"algorithm/{'loss=ppo' if group == 'loss' else 'kl=auto'}, or model=tiny_chain"
            )


def something_is_trained(case: Case) -> Iterator[str]:
    if case.is_chain and all(one.frozen for one in case.algorithm.segments.values()):
        yield (
            "algorithm.segments.text.weight=0 algorithm.segments.picture.weight=0 leave nothing to "
            "train; set one of them above 0"
        )


def losses_judge_a_segment_by_itself(case: Case) -> Iterator[str]:
    """Each in its units, and without a look at the other one."""
    if not case.is_chain:
        return
    for _, loss in iterate_innermost(case.algorithm.loss, "algorithm.loss"):
        said = f"algorithm/loss={name_of(loss)}"
        if batch_statistics_of(loss) is not None or facts_of(loss).averages:
            yield (
                f"{said} takes a statistic of a whole update, and that of a chain has tokens and "
                "denoising steps in it; set algorithm/loss=ppo"
            )
    for key, number, name in without_unit(case.algorithm):
        yield (
            f"{key}={number:g} of {name} has no unit, so nobody knows what it is of a denoising "
            f"step; declare units={{{key.rpartition('.')[2]!r}: 'clip'}}, or 'none' if it means "
            "the same everywhere"
        )


def columns_are_not_in_time(case: Case) -> Iterator[str]:
    """The steps of a picture stand before the text that it was painted for."""
    if not case.is_chain:
        return
    for group in ("advantage", "critic"):
        for part in parts_of(getattr(case.algorithm, group)):
            if facts_of(part).in_time:
                yield (
                    f"algorithm/{group}={name_of(part)} follows a sample in time, and a chain has "
                    "its denoising steps beside its tokens; set "
                    "algorithm/advantage=group_relative"
                )


def numbers_are_of_one_segment(case: Case) -> Iterator[str]:
    """A controller, and what ends the updates of an iteration, would compare nats of tokens with
    those of a latent dimension."""
    if not case.is_chain:
        return
    given = {"target_kl": case.algorithm.target_kl, "kl.kl_target": case.algorithm.kl.kl_target}
    for name, value in given.items():
        if value is not None:
            yield (
                f"algorithm.{name}={value:g}: texts and pictures move in other units; set it to "
                "null"
            )


def rows_are_whole_chains(case: Case) -> Iterator[str]:
    """Pairs have no text to a picture, and nobody samples one greedily."""
    if case.is_chain and case.strategy.gives & {"pairs", "baseline"}:
        yield (
            f"{case.option('sampling_strategy')} makes rows that a chain cannot make; set "
            "algorithm/sampling_strategy=on_policy"
        )


RULES = (
    segments_are_those_of_the_model,
    something_is_trained,
    losses_judge_a_segment_by_itself,
    columns_are_not_in_time,
    numbers_are_of_one_segment,
    rows_are_whole_chains,
)
