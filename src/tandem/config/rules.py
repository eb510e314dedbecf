"""Contradictions between parts of a configuration that are each right by themselves.

A rule is a function from what was composed to the one line that names the flag, or None. To add a
rule, write it and put it into RULES.
"""

from __future__ import annotations

from pathlib import Path

from tandem.config.comparing import (
    groups_have_rivals,
    rewards_are_weighed_once,
    scores_stay_in_their_domain,
    sets_fit_into_groups,
    values_have_a_critic,
    what_shaping_takes_is_read,
)
from tandem.config.composed import Composed, Rule
from tandem.config.devices import DEVICE_RULES
from tandem.config.engines import ENGINE_RULES
from tandem.config.given import GIVEN_RULES
from tandem.config.legal import LEGAL_RULES
from tandem.config.mixtures import MIXTURE_RULES
from tandem.config.own_functions import averaging_losses_see_whole_updates, ranges_rise
from tandem.config.pairs import PAIR_RULES
from tandem.config.ranges import RANGE_RULES
from tandem.config.regressed import REGRESSED_RULES
from tandem.config.remotes import REMOTE_RULES
from tandem.config.samples import SAMPLE_RULES
from tandem.config.stale import (
    a_ratio_has_an_old_policy,
    staleness_is_paid_once,
    what_is_given_has_no_sampler,
)
from tandem.config.trial import noise_levels_can_be_drawn, steps_can_be_taken
from tandem.contracts import facts_of


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
    if collect is None or "demonstrations" not in facts_of(collect.target).reads or size == 1:
        return None
    return (
        f"group_size={size}: an offline algorithm has one demonstration a prompt; set group_size=1"
    )


def a_run_has_a_directory_of_its_own(composed: Composed) -> str | None:
    settings = composed.settings
    if settings.resume is not None or not (Path(settings.run_dir) / "metrics.jsonl").exists():
        return None
    return (
        f"run_dir={settings.run_dir} holds a run already; go on with it by "
        f"resume={settings.run_dir}, or give another"
    )


RULES: tuple[Rule, ...] = (
    *RANGE_RULES,
    one_budget_of_memory,
    *LEGAL_RULES,
    *REGRESSED_RULES,
    *DEVICE_RULES,
    minibatches_have_a_group_each,
    groups_have_rivals,
    sets_fit_into_groups,
    values_have_a_critic,
    rewards_are_weighed_once,
    scores_stay_in_their_domain,
    what_shaping_takes_is_read,
    whole_samples_are_weighed_as_such,
    demonstrations_come_alone,
    staleness_is_paid_once,
    what_is_given_has_no_sampler,
    a_ratio_has_an_old_policy,
    a_run_has_a_directory_of_its_own,
    *SAMPLE_RULES,
    steps_can_be_taken,
    noise_levels_can_be_drawn,
    averaging_losses_see_whole_updates,
    ranges_rise,
    *REMOTE_RULES,
    *PAIR_RULES,
    *MIXTURE_RULES,
    *GIVEN_RULES,
    *ENGINE_RULES,
)
