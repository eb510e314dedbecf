"""Contradictions in chains: samples of a text followed by a picture."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.contracts import batch_statistics_of, facts_of, name_of, parts_of
from tandem.contracts.stateful import modules_in
from tandem.legality.case import Case
from tandem.legality.units import numbers_of_a_kl, without_unit
from tandem.types import PICTURE, SEGMENTS, TEXT


def segments_are_those_of_the_model(case: Case) -> Iterator[str]:
    """Parts for a segment need a model whose samples have segments."""
    if case.is_chain:
        if case.algorithm.segments.keys() != {*SEGMENTS}:
            yield f"algorithm.segments: a chain has {' and '.join(SEGMENTS)}; configure both"
        return
    made = f"model={case.plan.choices['model']} makes samples of one kind"
    if case.algorithm.segments:
        yield f"algorithm.segments: {made}; leave them out, or set model=tiny_chain"
    for group in ("loss", "kl"):
        if any(facts_of(part).segments for part in parts_of(case.parts[group])):
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
    """A loss of a chain treats each segment in its own units, and neither it nor a KL reads batch
    statistics."""
    if not case.is_chain:
        return
    for group, usual in (("loss", "ppo"), ("kl", "auto")):
        for part in parts_of(case.parts[group]):
            if batch_statistics_of(part) is not None or facts_of(part).averages:
                yield (
                    f"algorithm/{group}={name_of(part)} reads a statistic of a whole update, which "
                    f"mixes tokens and denoising steps in a chain; set algorithm/{group}={usual}"
                )
    for key, number, name in without_unit(case.algorithm):
        yield (
            f"{key}={number} of {name} has no unit, so its value per denoising step is "
            f"undefined; declare units={{{key.rpartition('.')[2]!r}: 'clip'}}, or 'none' if it "
            "does not scale"
        )


def columns_are_not_in_time(case: Case) -> Iterator[str]:
    """Columns of a chain are not ordered in time: picture steps precede their text."""
    if not case.is_chain:
        return
    for group in ("advantage", "critic"):
        for part in parts_of(case.parts[group]):
            if facts_of(part).in_time:
                yield (
                    f"algorithm/{group}={name_of(part)} needs steps in time order, and the "
                    "columns of a chain are not; set algorithm/advantage=group_relative"
                )


def numbers_are_of_one_segment(case: Case) -> Iterator[str]:
    """A KL controller or target would mix nats per token with nats per latent dimension."""
    if not case.is_chain:
        return
    for key, value in numbers_of_a_kl(case.algorithm).items():
        yield f"{key}={value:g}: texts and pictures differ in units; set it to null"


def rows_are_whole_chains(case: Case) -> Iterator[str]:
    """A chain cannot make preference pairs or a greedy baseline."""
    if case.is_chain and case.strategy.gives & {"pairs", "baseline"}:
        yield (
            f"{case.option('sampling_strategy')} needs rows that a chain cannot sample; set "
            "algorithm/sampling_strategy=on_policy"
        )


def several_pictures_of_a_text_are_compared(case: Case) -> Iterator[str]:
    """Several pictures per text restrict the groups, the KL, the loss and the advantage."""
    if not (case.is_chain and case.samples):
        return
    each, within = case.sampling.pictures_per_text, case.algorithm.segments[PICTURE].within
    if each == 1:
        if within == TEXT:
            yield (
                "algorithm.segments.picture.within=text: a text has one picture; set it to prompt, "
                "or rollout.pictures_per_text above 1"
            )
        return
    key, rows = f"rollout.pictures_per_text={each}", case.plan.group_size
    if rows % each:
        yield f"{key} does not divide group_size={rows}, which counts pictures; change either"
    if facts_of(case.algorithm.kl).lowers_scores and case.algorithm.kl.coef:
        yield (
            f"{key}: {case.option('kl')} would charge the KL of the text to one picture; set "
            "algorithm/kl=auto"
        )
    if (loss := case.loss_that(lambda facts: facts.whole_groups)) is not None:
        yield (
            f"{key}: algorithm/loss={name_of(loss)} compares the rows of a group, and a text has "
            "several rows; set algorithm/loss=ppo"
        )
    if any(True for _ in modules_in("advantage", case.algorithm.advantage)):
        yield (
            f"{key}: {case.option('advantage')} keeps a history of scores, and scores of texts are "
            "means; set algorithm/advantage=group_relative"
        )


RULES = (
    segments_are_those_of_the_model,
    something_is_trained,
    losses_judge_a_segment_by_itself,
    columns_are_not_in_time,
    numbers_are_of_one_segment,
    rows_are_whole_chains,
    several_pictures_of_a_text_are_compared,
)
