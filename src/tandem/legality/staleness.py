"""Contradictions between samples of older weights and who samples, and who learns from them."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.legality.case import BOUNDS, Case
from tandem.types import OF_SNAPSHOTS

FRESH = "set rollout.staleness=0"


def older_samples_are_corrected_for(case: Case) -> Iterator[str]:
    """A ratio to the sampler, or an old policy that is the sampler."""
    staleness = case.sampling.staleness
    if not staleness or case.algorithm.corrects:
        return
    yield f"rollout.staleness={staleness}: {_why(case)}"


def _why(case: Case) -> str:
    name = case.plan.choices["algorithm"]
    if case.is_offline:
        what = "trains on rows of data as well" if case.samples else "samples nothing"
        return f"algorithm={name} {what}; {FRESH}"
    if case.compares_pairs:
        return f"algorithm={name} has no ratio to the weights that sampled its pairs; {FRESH}"
    if case.domain == BOUNDS:
        return (
            f"{case.option('likelihood')} asks at other states than the sampler did, whose "
            f"log-probabilities correct nothing there; {FRESH}"
        )
    old = OF_SNAPSHOTS["old_error"]
    if not case.algorithm.reads_errors:
        return (
            "nothing corrects for samples of older weights; set "
            "algorithm/importance_sampling=token_tis or staleness_decay"
        )
    if "old_error" in case.algorithm.training_objective.needs:
        return (
            f"algorithm={name} compares with the policy algorithm.ema.{old}, which does not sample "
            f"its pictures; set algorithm.rollout_weights={old}, or rollout.staleness=0"
        )
    return (
        f"algorithm={name} compares with no policy that sampled its pictures; {FRESH}, or take "
        "algorithm=nft or flow_grpo"
    )


def what_shares_the_weights_samples_in_order(case: Case) -> Iterator[str]:
    """Rows come one after another there, so that none is ready before its time."""
    ours = case.engine is None or case.engine.target.shares_weights
    if case.sampling.order == "ready" and ours:
        yield (
            "rollout.order=ready takes the rows that come first, and what samples by the very "
            "weights that are trained gives them in order; set rollout.order=exact, or "
            "rollout=vllm_server"
        )


def who_samples_ahead_does_not_sleep(case: Case) -> Iterator[str]:
    """An engine that gives its memory to the training has none while it samples ahead."""
    engine = case.engine
    if case.sampling.staleness and engine is not None and engine.arguments.get("sleeps"):
        yield (
            f"rollout.staleness={case.sampling.staleness} samples while the policy is trained, and "
            "rollout.engine.sleeps=true gives the memory for it away; set one of them to 0 or false"
        )


def rows_in_order_are_of_one_version(case: Case) -> Iterator[str]:
    """Weights that change under a row do so at a moment that nobody repeats."""
    arguments = case.rollout.arguments
    if case.sampling.order == "exact" and arguments.get("handover") == "in_flight":
        yield (
            "rollout.handover=in_flight changes the weights of rows that are under way, and "
            "rollout.order=exact asks for each by one version; set rollout.order=ready, or "
            "rollout.handover=null"
        )


RULES = (
    rows_in_order_are_of_one_version,
    older_samples_are_corrected_for,
    what_shares_the_weights_samples_in_order,
    who_samples_ahead_does_not_sleep,
)
