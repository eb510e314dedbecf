"""Contradictions about samples of older weights."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.legality.case import BOUNDS, Case
from tandem.types import OF_SNAPSHOTS

FRESH = "set rollout.staleness=0"


def older_samples_are_corrected_for(case: Case) -> Iterator[str]:
    """Samples of older weights need a ratio to the sampler, or the sampler as old policy."""
    staleness = case.sampling.staleness
    if not staleness or case.algorithm.corrects:
        return
    yield f"rollout.staleness={staleness}: {_why(case)}"


def _why(case: Case) -> str:
    name = case.plan.choices["algorithm"]
    if case.is_offline:
        what = "also trains on rows of data" if case.samples else "samples nothing"
        return f"algorithm={name} {what}; {FRESH}"
    if case.preference_loss is not None:
        return f"algorithm={name} has no ratio to the weights that sampled its pairs; {FRESH}"
    if case.domain == BOUNDS:
        return (
            f"{case.option('likelihood')} draws states of its own, for which there are no "
            f"log-probabilities of the sampler; {FRESH}"
        )
    old = OF_SNAPSHOTS["old_error"]
    if not case.algorithm.reads_errors:
        return (
            "nothing corrects for samples of older weights; set "
            "algorithm/importance_sampling=token_tis or staleness_decay"
        )
    if "old_error" in case.algorithm.training_objective.needs:
        return (
            f"algorithm={name} compares with algorithm.ema.{old}, which did not sample the "
            f"pictures; set algorithm.rollout_weights={old}, or rollout.staleness=0"
        )
    return (
        f"algorithm={name} does not correct for the weights that sampled; {FRESH}, or "
        "algorithm=nft or flow_grpo"
    )


def what_shares_the_weights_samples_in_order(case: Case) -> Iterator[str]:
    """A sampler that shares the trained weights returns rows in order only."""
    ours = case.engine is None or case.engine.target.shares_weights
    if case.sampling.order == "ready" and ours:
        yield (
            "rollout.order=ready takes rows as they finish, and a sampler that shares the trained "
            "weights returns them in order; set rollout.order=exact, or rollout=vllm_server"
        )


def who_samples_ahead_does_not_sleep(case: Case) -> Iterator[str]:
    """An engine that samples ahead of training cannot release its memory to training."""
    engine = case.engine
    if case.sampling.staleness and engine is not None and engine.arguments.get("sleeps"):
        yield (
            f"rollout.staleness={case.sampling.staleness} samples during training, and "
            "rollout.engine.sleeps=true releases the memory for it; set one of them to 0 or false"
        )


def rows_in_order_are_of_one_version(case: Case) -> Iterator[str]:
    """Weights that change during a row do so at a moment that cannot be reproduced."""
    arguments = case.rollout.arguments
    if case.sampling.order == "exact" and arguments.get("handover") == "in_flight":
        yield (
            "rollout.handover=in_flight changes weights while rows are sampled, and "
            "rollout.order=exact needs one version per row; set rollout.order=ready, or "
            "rollout.handover=null"
        )


def engines_support_the_handover(case: Case) -> Iterator[str]:
    """A token engine with a copy of the weights supports the mode of their handover."""
    engine = None if case.engine is None else case.engine.target
    if engine is None or engine.shares_weights or engine.samples != "tokens":
        return
    adapter = case.model.arguments.get("lora") is not None
    mode = case.sampling.handover_of(adapter=adapter)
    if mode == "pinned" and not adapter:
        yield (
            "rollout.handover=pinned keeps adapters of older versions, and the whole weights are "
            "trained; set rollout.handover=null, or train an adapter by model.lora"
        )
        return
    if mode in engine.handover_modes:
        return
    # What is pinned has a name of its own, as adapters have.
    rest = [one for one in sorted(engine.handover_modes) if adapter or one != "pinned"]
    default = "adapters" if adapter else f"rollout.order={case.sampling.order}"
    why = "" if case.sampling.handover else f", the default of {default}"
    yield (
        f"rollout.handover={mode}{why}: rollout={case.plan.choices['rollout']} does not support "
        f"it; set rollout.handover={' or '.join(rest)}"
    )


RULES = (
    rows_in_order_are_of_one_version,
    older_samples_are_corrected_for,
    what_shares_the_weights_samples_in_order,
    who_samples_ahead_does_not_sleep,
    engines_support_the_handover,
)
