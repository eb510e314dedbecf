"""Contradictions between samples, their sampler, and their rewards, data and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

from tandem.contracts import facts_of, is_foreign, numbers_of, rewards_read_by
from tandem.data.mixture import complaint
from tandem.evaluation.settings import Pictures
from tandem.legality.case import Case, Part, unknown
from tandem.rewards.signature import compares


def training_samples_are_whole(case: Case) -> Iterator[str]:
    """Training samples come from the full distribution, whose log-probabilities are trained."""
    if not case.samples:
        return
    for key, part in case.samplers.items():
        given, said = part.arguments, "samples from another distribution than the trained one"
        if (top_p := given.get("top_p")) is not None and top_p < 1:
            yield f"{key}.top_p={top_p} {said}; set {key}.top_p=1"
        if top_k := given.get("top_k"):
            yield f"{key}.top_k={top_k} {said}; set {key}.top_k=0"


def training_samples_are_random(case: Case) -> Iterator[str]:
    """Training samples are drawn at a temperature above 0."""
    for key, part in case.samplers.items():
        temperature = part.arguments.get("temperature")
        if case.samples and temperature is not None and temperature <= 0:
            yield f"{key}.temperature={temperature} makes all samples equal; set it above 0"


def samples_of_a_group_differ(case: Case) -> Iterator[str]:
    """Samples that start from the same noise need random steps to become different pictures."""
    dynamics, given = case.plan.dynamics, case.painter[0].arguments
    if not (case.samples and given.get("shared_noise") and case.plan.group_size > 1):
        return
    if facts_of(dynamics.kernel).noiseless:
        yield (
            f"rollout.shared_noise=true on dynamics={case.plan.choices['dynamics']}: the samples "
            "of a prompt start from the same noise and take no random step, so all are equal; set "
            "rollout.shared_noise=false"
        )


def rewards_read_what_is_made(case: Case) -> Iterator[str]:
    """A reward of texts needs a language model, one of pictures a flow model."""
    made, chosen = "texts" if case.is_of_texts else "pictures", case.plan.choices
    named = rewards_read_by(case.algorithm.advantage)
    for name, function in _functions(case).items():
        if (read := facts_of(function).judges) in (None, made):
            continue
        advice = f"choose a reward of {made}"
        if name in named:  # the algorithm cannot do without it
            such = "tiny_flow" if case.is_of_texts else "tiny_lm"
            advice = (
                f"the advantage of algorithm={chosen['algorithm']} reads it: set a model of "
                f"{read}, such as model={such}, or another algorithm"
            )
        yield f"reward.{name} reads {read}, but model={chosen['model']} makes {made}; {advice}"


def data_ask_for_what_is_made(case: Case) -> Iterator[str]:
    """Data of texts need a language model, those of pictures a flow model."""
    made, chosen = "texts" if case.is_of_texts else "pictures", case.plan.choices
    if (asked := facts_of(case.data.target).judges) not in (None, made):
        embedded = "sort_letters" if case.is_of_texts else "shapes"
        yield (
            f"data={chosen['data']} asks for {asked}, but model={chosen['model']} makes {made}; "
            f"set data={embedded}, or your own prompts: data=jsonl data.path=FILE"
        )


def rewards_that_compare_see_a_group(case: Case) -> Iterator[str]:
    """A reward that compares needs groups of two or more."""
    comparing = [name for name, function in _functions(case).items() if compares(function)]
    if not case.samples or not comparing:
        return
    said = f"reward.{comparing[0]} compares the samples of a prompt"
    if case.plan.group_size == 1:
        yield f"{said}, but group_size=1 leaves each alone; set group_size=2 or more"
    if "baseline" in case.strategy.gives:
        yield (
            f"{said}, but {case.option('sampling_strategy')} scores the greedy answer alone; set "
            "algorithm=rloo, or another reward"
        )


def _functions(case: Case) -> dict[str, Callable]:
    functions = {name: part.arguments.get("function") for name, part in case.rewards.items()}
    return {name: one.target for name, one in functions.items() if one is not None}


def metrics_name_a_reward(case: Case) -> Iterator[str]:
    """The rewards that evaluation and dynamic sampling read exist."""
    named = {
        "evaluation.metric": case.plan.evaluation.metric,
        "algorithm.sampling_strategy.metric": numbers_of(case.algorithm.sampling_strategy).get(
            "metric"
        ),
    }
    for key, name in named.items():
        if name is not None and name not in case.rewards:
            yield f"{key}: {unknown('reward', name, case.rewards)}"


def an_average_is_kept(case: Case) -> Iterator[str]:
    if case.plan.evaluation.of_average and case.model.arguments.get("ema") is None:
        yield "evaluation.weights=ema: no average is kept; set model/ema=constant or another one"


def pictures_can_have_that_size(case: Case) -> Iterator[str]:
    """The model supports the resolution of the evaluation."""
    evaluation, adapter = case.plan.evaluation, case.painter[1].arguments.get("adapter")
    if not isinstance(evaluation, Pictures) or evaluation.resolution is None:
        return
    only = adapter.target.only_resolution
    if only not in (None, evaluation.resolution):
        yield (
            f"evaluation.resolution={evaluation.resolution}: "
            f"model={case.plan.choices['model']} only makes {only} x {only} pixels; set "
            "evaluation.resolution=null"
        )


def training_pictures_have_the_models_size(case: Case) -> Iterator[str]:
    """The size of training is the model's, which also sets the units of the dynamics."""
    for (key, part), name in product(case.samplers.items(), ("resolution", "frames")):
        if (given := part.arguments.get(name)) is not None:
            yield (
                f"{key}.{name}={given} is only for evaluation.{name}: training has the size of "
                f"the model; set model.adapter.{name}, where it has one"
            )


def rewards_of_films_see_films(case: Case) -> Iterator[str]:
    """A reward of films needs a model of films."""
    for name, function in _functions(case).items():
        if facts_of(function).of_films and not case.makes_films:
            yield (
                f"reward={name} judges films, and model={case.plan.choices['model']} makes none; "
                "choose another reward, or a model of films, such as wan2_1_1_3b"
            )


def films_are_sampled(case: Case) -> Iterator[str]:
    """Rows of Tandem's datasets hold pictures, so a model of films learns from its samples."""
    datasets = [case.data, *(one["data"] for one in datasets_of(case.data).values())]
    if not (case.is_offline and case.makes_films) or any(is_foreign(x.target) for x in datasets):
        return
    chosen = case.plan.choices
    yield (
        f"algorithm={chosen['algorithm']} learns from rows of data, and model={chosen['model']} "
        f"makes films, which data={chosen['data']} has none of; set an algorithm that trains on "
        "its own samples, such as algorithm=flow_grpo, or a dataset of your own"
    )


def frames_are_of_films(case: Case) -> Iterator[str]:
    """Keys of frames are for rewards of pictures on films."""
    functions, without = _functions(case), {"frames": None, "of_frames": "mean"}
    for (name, part), key in product(case.rewards.items(), without):
        given = part.arguments.get(key, without[key])
        whole = facts_of(functions.get(name)).of_films
        if given == without[key] or (case.makes_films and not whole):
            continue
        model = case.plan.choices["model"]
        why = "it reads whole films" if whole else f"model={model} makes no films"
        yield f"reward.{name}.{key}={given}: {why}; set it to {without[key] or 'null'}"


def ranges_rise(case: Case) -> Iterator[str]:
    for name, reward in case.rewards.items():
        bounds = reward.arguments.get("range")
        if bounds is not None and not bounds[0] < bounds[1]:
            yield f"reward.{name}.range={list(bounds)}: list the lowest number first"


def datasets_have_their_numbers(case: Case) -> Iterator[str]:
    for name, given in datasets_of(case.data).items():
        numbers = {key: value for key, value in given.items() if key != "data"}
        mixed = bool(datasets_of(given["data"]))
        if (said := complaint(name, mixed=mixed, **numbers)) is not None:
            yield said


def datasets_name_their_rewards(case: Case) -> Iterator[str]:
    """The rewards that the datasets of a mixture name exist, and each scores some dataset. A warm
    start scores nothing, and has the datasets of its run with another reward."""
    if not (case.samples or case.evaluates):
        return
    named = {name: given.get("rewards") for name, given in datasets_of(case.data).items()}
    for name, own in named.items():
        for reward in own or ():
            if reward not in case.rewards:
                yield f"data.of.{name}.rewards: {unknown('reward', reward, case.rewards)}"
    if not named or None in named.values():
        return
    judging = {reward for own in named.values() for reward in own}
    for idle in [reward for reward in case.rewards if reward not in judging]:
        yield (
            f"reward.{idle} scores no dataset; list it in data.of.{next(iter(named))}.rewards, or "
            "leave it out"
        )


def the_test_prompts_wait_for_an_evaluation(case: Case) -> Iterator[str]:
    """A training run measures the eval prompts, by which its settings are chosen."""
    split = case.plan.evaluation.split
    if split != "eval" and not case.plan.evaluate:
        yield (
            f"evaluation.split={split} is for evaluate=true, and training is measured on the eval "
            f"prompts; leave it out, and measure the run afterwards with resume=RUN evaluate=true "
            f"evaluation.split={split}"
        )


def datasets_of(data: Part) -> dict[str, Mapping[str, Any]]:
    """The numbers of each dataset of a mixture, by name."""
    if not facts_of(data.target).mixes:
        return {}
    return {name: one.arguments for name, one in data.arguments["of"].items()}


RULES = (
    training_samples_are_whole,
    training_samples_are_random,
    samples_of_a_group_differ,
    rewards_that_compare_see_a_group,
    metrics_name_a_reward,
    an_average_is_kept,
    pictures_can_have_that_size,
    training_pictures_have_the_models_size,
    frames_are_of_films,
    films_are_sampled,
    ranges_rise,
    datasets_have_their_numbers,
    datasets_name_their_rewards,
    the_test_prompts_wait_for_an_evaluation,
)
KINDS = (data_ask_for_what_is_made, rewards_read_what_is_made, rewards_of_films_see_films)
