"""Contradictions between samples, how they are drawn, and what they are judged by."""

from __future__ import annotations

from tandem.config.binding import Call
from tandem.config.building import make
from tandem.config.composed import Composed
from tandem.config.names import unknown
from tandem.contracts import facts_of
from tandem.passes import Answers, Pictures
from tandem.rewards.asking import compares


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


def rewards_read_what_is_made(composed: Composed) -> str | None:
    made = "texts" if composed.settings.dynamics.name == "autoregressive" else "pictures"
    for name, reward in composed.components["reward"].items():
        function = reward.arguments.get("function")
        read = facts_of(function.target).judges if isinstance(function, Call) else None
        if read is not None and read != made:
            return (
                f"reward.{name} reads {read}, but model={composed.settings.choices['model']} makes "
                f"{made}; choose a reward of {made}"
            )
    return None


def rewards_that_compare_see_a_group(composed: Composed) -> str | None:
    functions = {n: r.arguments.get("function") for n, r in composed.components["reward"].items()}
    comparing = [n for n, f in functions.items() if isinstance(f, Call) and compares(f.target)]
    if composed.is_offline or not comparing:
        return None
    said = f"reward.{comparing[0]} compares the samples of a prompt"
    if composed.settings.group_size == 1:
        return f"{said}, but group_size=1 leaves each alone; set group_size=2 or more"
    collect = composed.within("algorithm", "collect")
    if collect is None or "baseline" not in facts_of(collect.target).gives:
        return None
    return (
        f"{said}, but algorithm/collect={collect.target.__name__} has one more judged alone; take "
        "algorithm=rloo, or another reward"
    )


def an_average_is_kept(composed: Composed) -> str | None:
    evaluation, model = composed.settings.evaluation, composed.components["model"]
    if not evaluation.of_average or model.arguments.get("ema") is not None:
        return None
    return "evaluation.weights=ema: no average is kept; set model/ema=constant, or another one"


def pictures_can_have_that_size(composed: Composed) -> str | None:
    evaluation, adapter = composed.settings.evaluation, composed.within("model", "adapter")
    if not isinstance(evaluation, Pictures) or evaluation.resolution is None:
        return None
    only = make(adapter).only_resolution
    if only in (None, evaluation.resolution):
        return None
    return (
        f"evaluation.resolution={evaluation.resolution}: "
        f"model={composed.settings.choices['model']} paints {only} x {only} pixels and no others; "
        "set evaluation.resolution=null"
    )


SAMPLE_RULES = (
    training_samples_are_whole,
    training_samples_are_random,
    samples_are_measured_as_what_they_are,
    rewards_read_what_is_made,
    rewards_that_compare_see_a_group,
    metrics_name_a_reward,
    an_average_is_kept,
    pictures_can_have_that_size,
)
