"""Evaluation without training: `evaluate=true`."""

from __future__ import annotations

import logging

from tandem import rng
from tandem.config import ConfigError
from tandem.config.refusals import refusing
from tandem.data import Data
from tandem.evaluation.evaluate import choose_held_out, evaluate
from tandem.evaluation.preference_accuracy import compare_pairs
from tandem.launch.devices import device_of_rank
from tandem.launch.people import doing, say
from tandem.record.evaluation_record import EvaluationRecord
from tandem.record.summary import evaluation_table
from tandem.record.terminal import line
from tandem.settings.guards import describe_counts
from tandem.settings.settings import Settings
from tandem.training.callbacks import newest_policy
from tandem.training.module import PostTraining

log = logging.getLogger(__name__)


def evaluate_run(
    module: PostTraining, settings: Settings, data: Data, record: EvaluationRecord
) -> dict[str, float]:
    """Evaluate the newest checkpoint of a run, or a model as loaded, on held-out prompts.

    One process on one device. The result is written to the run directory, beside the record.
    """
    iteration = 0
    prompts = choose_held_out(data.splits[settings.evaluation.split], settings.evaluation.prompts)
    if not prompts:
        raise ConfigError(
            f"evaluation.split={settings.evaluation.split}: the data has no prompts of this split"
        )
    if settings.resume is not None:
        with refusing():
            weights, state, iteration = newest_policy(record.run_dir)
            module.policy.load_weights(weights)
            module.policy.load_state(state)  # the average of the weights may be requested
    module.policy.to(device_of_rank(settings.trainer, 0))
    own, key = settings.evaluation, rng.key(settings.seed, "eval")
    with doing("evaluating", f"{len(prompts)} prompts"):
        found = evaluate(
            module.policy, module.rewards, prompts, own, key=key, full=True, stop=lambda: False
        )
    if found.faults:
        log.warning("evaluation %d: missing scores: %s", iteration, describe_counts(found.faults))
    compared = compare_pairs(module.policy, module.algorithm.loss, prompts, own, key=key)
    metrics = {**found.metrics, **compared}
    record.write(iteration, metrics, found.rows)
    say(evaluation_table(metrics, "as loaded" if settings.resume is None else f"at {iteration}"))
    say(
        line(
            "measured",
            f"{len(prompts)} prompts of {own.split}, by {whose_weights(settings, iteration)}",
        )
    )
    say(line("written", f"{record.table} and {record.table.with_suffix('.json').name}"))
    return metrics


def whose_weights(settings: Settings, iteration: int) -> str:
    """The weights that were evaluated, in words."""
    if settings.resume is not None:
        which = "the average of the weights" if settings.evaluation.of_average else "the weights"
        return f"{which} after {iteration} iterations"
    if settings.continue_from is not None:
        return f"the weights that {settings.continue_from} ended with"
    start = "as it is loaded" if settings.warm_start is None else "after its warm start"
    return f"model={settings.choices['model']} {start}"
