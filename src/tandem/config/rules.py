"""Contradictions between parts of a configuration that are each right by themselves.

A rule is a function from what was composed to the one line that names the flag, or None. To add a
rule, write it and put it into RULES.
"""

from __future__ import annotations

from pathlib import Path

from tandem.config.binding import Call
from tandem.config.comparing import (
    groups_have_rivals,
    groups_stand_side_by_side,
    rewards_are_weighed_once,
    scores_stay_in_their_domain,
    sets_fit_into_groups,
    values_have_a_critic,
    what_shaping_takes_is_read,
)
from tandem.config.composed import Composed, Rule
from tandem.config.given import GIVEN_RULES
from tandem.config.legal import LEGAL_RULES
from tandem.config.names import unknown
from tandem.config.own_functions import averaging_losses_see_whole_updates, ranges_rise
from tandem.config.pairs import PAIR_RULES
from tandem.config.ranges import (
    bounds_rise,
    clips_can_be_told_from_rounding,
    noise_fits_into_a_state,
    numbers_are_in_their_range,
    seed_is_not_negative,
    sizes_are_positive,
    the_cap_is_above_the_clip,
    the_policy_learns_at_last,
)
from tandem.config.stale import (
    a_ratio_has_an_old_policy,
    staleness_is_paid_once,
    what_is_given_has_no_sampler,
)
from tandem.declarations import needs_of
from tandem.passes import Answers


def one_budget_of_memory(composed: Composed) -> str | None:
    settings = composed.settings
    if settings.micro_batch_size is None or settings.max_tokens_per_microbatch is None:
        return None
    return (
        "micro_batch_size and max_tokens_per_microbatch both cut an update; set one of them to null"
    )


def minibatches_have_a_group_each(composed: Composed) -> str | None:
    cuts, prompts = composed.settings.num_minibatches, composed.settings.prompts_per_step
    if cuts <= prompts:
        return None
    return (
        f"num_minibatches={cuts} needs as many groups, but prompts_per_step={prompts}; "
        f"raise prompts_per_step or set num_minibatches={prompts} or less"
    )


WHOLE = ("gspo", "gmpo")  # losses with one value for all steps of a sample
BY_SAMPLE = ("sequence_mean", "sequence_sum")


def whole_samples_are_weighed_as_such(composed: Composed) -> str | None:
    loss, weights = composed.policy_loss, composed.within("algorithm", "weights")
    if loss is None or weights is None or loss.target.__name__ not in WHOLE:
        return None
    if weights.target.__name__ in BY_SAMPLE:
        return None
    return (
        f"algorithm/weights={weights.target.__name__}: {loss.target.__name__} has one ratio for a "
        f"whole sample; set algorithm/weights={' or '.join(BY_SAMPLE)}"
    )


def demonstrations_come_alone(composed: Composed) -> str | None:
    size, collect = composed.settings.group_size, composed.within("algorithm", "collect")
    if collect is None or "demonstrations" not in needs_of(collect.target) or size == 1:
        return None
    return (
        f"group_size={size}: an offline algorithm has one demonstration a prompt; set group_size=1"
    )


def training_samples_are_whole(composed: Composed) -> str | None:
    """A truncated sampler is another policy than the one whose log-probabilities are trained."""
    rollout = composed.components["rollout"]
    if composed.is_offline or not isinstance(rollout, Call):
        return None
    top_p, top_k = (rollout.arguments.get(name) for name in ("top_p", "top_k"))
    if top_p is not None and top_p < 1:
        return f"rollout.top_p={top_p} trains on samples of another policy; set rollout.top_p=1"
    if top_k:
        return f"rollout.top_k={top_k} trains on samples of another policy; set rollout.top_k=0"
    return None


def training_samples_are_random(composed: Composed) -> str | None:
    rollout = composed.components["rollout"]
    if composed.is_offline or not isinstance(rollout, Call):
        return None
    if (temperature := rollout.arguments.get("temperature")) is None or temperature > 0:
        return None
    return f"rollout.temperature={temperature} samples nothing to compare; set it above 0"


def a_run_has_a_directory_of_its_own(composed: Composed) -> str | None:
    settings = composed.settings
    if settings.resume is not None or not (Path(settings.run_dir) / "metrics.jsonl").exists():
        return None
    return (
        f"run_dir={settings.run_dir} holds a run already; go on with it by "
        f"resume={settings.run_dir}, or give another"
    )


def samples_are_measured_as_what_they_are(composed: Composed) -> str | None:
    """There are no temperatures of pictures, and no ODE of texts."""
    settings = composed.settings
    texts = settings.dynamics.name == "autoregressive"
    if isinstance(settings.evaluation, Answers) == texts:
        return None
    chosen, fits = settings.choices, "answers" if texts else "pictures"
    return (
        f"evaluation={chosen['evaluation']} does not measure the samples of "
        f"model={chosen['model']}; set evaluation={fits}"
    )


def metrics_name_a_reward(composed: Composed) -> str | None:
    """What evaluation calls correct, and what dynamic sampling filters by."""
    collect = composed.within("algorithm", "collect")
    named = {"evaluation.metric": composed.settings.evaluation.metric}
    if collect is not None:
        named["algorithm.collect.metric"] = collect.arguments.get("metric")
    rewards = list(composed.components["reward"])
    for key, name in named.items():
        if name is not None and name not in rewards:
            return f"{key}: {unknown('reward', name, rewards)}"
    return None


def an_average_is_kept(composed: Composed) -> str | None:
    evaluation, model = composed.settings.evaluation, composed.components["model"]
    if not evaluation.of_average or model.arguments.get("ema") is not None:
        return None
    return "evaluation.weights=ema: no average is kept; set model/ema=constant, or another one"


def there_is_a_device(composed: Composed) -> str | None:
    devices = composed.settings.trainer.devices
    return "trainer.devices=0: give 1 or more, or auto" if devices in (0, []) else None


RULES: tuple[Rule, ...] = (
    seed_is_not_negative,
    sizes_are_positive,
    one_budget_of_memory,
    *LEGAL_RULES,
    minibatches_have_a_group_each,
    groups_have_rivals,
    sets_fit_into_groups,
    values_have_a_critic,
    rewards_are_weighed_once,
    scores_stay_in_their_domain,
    groups_stand_side_by_side,
    what_shaping_takes_is_read,
    whole_samples_are_weighed_as_such,
    the_cap_is_above_the_clip,
    demonstrations_come_alone,
    staleness_is_paid_once,
    what_is_given_has_no_sampler,
    a_ratio_has_an_old_policy,
    training_samples_are_whole,
    training_samples_are_random,
    a_run_has_a_directory_of_its_own,
    samples_are_measured_as_what_they_are,
    metrics_name_a_reward,
    numbers_are_in_their_range,
    noise_fits_into_a_state,
    bounds_rise,
    clips_can_be_told_from_rounding,
    the_policy_learns_at_last,
    there_is_a_device,
    an_average_is_kept,
    averaging_losses_see_whole_updates,
    ranges_rise,
    *PAIR_RULES,
    *GIVEN_RULES,
)
