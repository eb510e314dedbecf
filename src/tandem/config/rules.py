"""Contradictions between parts of a configuration that are each right by themselves.

A rule is a function from what was composed to the one line that names the flag, or None. To add a
rule, write it and put it into RULES.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import reduce
from operator import getitem
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
from tandem.config.stale import (
    a_ratio_has_an_old_policy,
    staleness_is_paid_once,
    what_is_given_has_no_sampler,
)
from tandem.declarations import needs_of
from tandem.passes import Answers

POSITIVE = (
    "iterations prompts_per_step group_size num_minibatches epochs max_grad_norm threads "
    "micro_batch_size max_tokens_per_microbatch checkpoints.every checkpoints.keep "
    "evaluation.every evaluation.prompts evaluation.samples evaluation.pass_at evaluation.rows"
)


def sizes_are_positive(composed: Composed) -> str | None:
    settings = asdict(composed.settings)
    for key in POSITIVE.split():
        value = reduce(getitem, key.split("."), settings)
        numbers = value if isinstance(value, tuple) else (value,)
        if any(number is not None and number <= 0 for number in numbers):
            shown = list(value) if isinstance(value, tuple) else value
            return f"{key}={shown}: must be positive"
    return None


def seed_is_not_negative(composed: Composed) -> str | None:
    seed = composed.settings.seed
    return f"seed={seed}: must not be negative" if seed < 0 else None


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


IN_NATS = ("gmpo",)  # losses whose clip bounds a log ratio
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


def the_cap_is_above_the_clip(composed: Composed) -> str | None:
    """Below it, a dual clip would hide steps that the clip means to push back."""
    loss = composed.policy_loss
    numbers = {} if loss is None else loss.arguments
    high, most = numbers.get("clip_high"), numbers.get("ratio_max")
    if high is None or most is None or most > 1 + high:
        return None
    return (
        f"algorithm.loss.ratio_max={most} caps ratios that clip_high={high} lets through; "
        f"set it above {1 + high:g}, or to null"
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


# Numbers that would otherwise be found after the warm start, or never.
AT_LEAST_ZERO = (
    "optimizer.lr optimizer.weight_decay schedule.warmup schedule.final algorithm.kl.coef "
    "algorithm.loss.clip_high algorithm.loss.coef algorithm.loss.desirable "
    "algorithm.loss.undesirable algorithm.advantage.eps algorithm.critic.coef algorithm.critic.lr "
    "algorithm.critic.warmup algorithm.critic.loss.clip"
)
FRACTIONS = (
    "algorithm.loss.part algorithm.advantage.gamma algorithm.advantage.lam "
    "algorithm.correction.decay"
)
INF = float("inf")


def numbers_are_in_their_range(composed: Composed) -> str | None:
    for keys, high in ((AT_LEAST_ZERO, INF), (FRACTIONS, 1)):
        for key in keys.split():
            value = composed.number(key)
            if isinstance(value, int | float) and not 0 <= value <= high:
                said = "not be negative" if high == INF else "lie in 0 ... 1"
                return f"{key}={value}: must {said}"
    return None


def bounds_rise(composed: Composed) -> str | None:
    """Of a band of the loss, and of a clip of ratios, which cannot go below 0."""
    edges = [composed.number(f"algorithm.correction.{name}") for name in ("low", "high")]
    if None not in edges and not edges[0] < edges[1]:
        return f"algorithm.correction.low={edges[0]}: must be below high={edges[1]}"
    between, low = (composed.number(f"algorithm.loss.{name}") for name in ("between", "clip_low"))
    if between is not None and not between[0] < between[1]:
        return f"algorithm.loss.between={list(between)}: give the lower bound and then the upper"
    loss = composed.policy_loss
    in_nats = loss is not None and loss.target.__name__ in IN_NATS
    if low is not None and not 0 <= low <= (INF if in_nats else 1):
        return f"algorithm.loss.clip_low={low}: must " + (
            "not be negative" if in_nats else "lie in 0 ... 1"
        )
    return None


def the_policy_learns_at_last(composed: Composed) -> str | None:
    warmup, iterations = composed.number("algorithm.critic.warmup"), composed.settings.iterations
    if warmup is None or warmup < iterations:
        return None
    return (
        f"algorithm.critic.warmup={warmup} of iterations={iterations} leaves none to the policy; "
        "set it lower"
    )


def an_average_is_kept(composed: Composed) -> str | None:
    evaluation, model = composed.settings.evaluation, composed.components["model"]
    if getattr(evaluation, "weights", "live") == "live" or model.arguments.get("ema") is not None:
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
    bounds_rise,
    the_policy_learns_at_last,
    there_is_a_device,
    an_average_is_kept,
    averaging_losses_see_whole_updates,
    ranges_rise,
    *PAIR_RULES,
    *GIVEN_RULES,
)
