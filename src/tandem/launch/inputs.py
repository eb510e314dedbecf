"""Inputs of a run, read and checked before heavy imports and before weights are loaded."""

from __future__ import annotations

from collections.abc import Set
from itertools import chain

from omegaconf import DictConfig

from tandem.algorithm.algorithm import Algorithm
from tandem.config import ConfigError, build
from tandem.config.plain import iterate_leaves, to_plain
from tandem.config.refusals import refusing
from tandem.config.targets import resolve
from tandem.contracts import facts_of, is_foreign
from tandem.contracts.parts import expand_home
from tandem.data import Data
from tandem.policies.teachers import rows_by_teacher
from tandem.record.terminal import starting
from tandem.rewards.result import attempt, describe, place_of
from tandem.training.batches import GIVEN

HERE = (".", "/", "~")  # prefixes of local paths, as opposed to names on the hub
# The start of an error message: how an algorithm reads each split.
WANTS = {
    "demonstrations": "imitates answers, but no row",
    "pairs": "compares a chosen with a rejected answer, but no row",
    "train": "samples answers to prompts, but no row",
}
FIELDS = "docs/howto/data.md lists the field names"


def read_inputs(cfg: DictConfig) -> Data | None:
    """The prompts; None: a dry run does not download them.

    Raises ConfigError for data, rewards and folders that cannot be used.
    """
    check_places(cfg)
    with refusing():
        for node in cfg.reward.values():
            if not may_load_weights(node.function):
                build(node)
        if cfg.dry_run and must_be_downloaded(cfg):
            return None
        with starting(f"data={cfg.choices.data}"):
            data = read_data(cfg)
    algorithm = build(cfg.algorithm)
    if scores_samples(algorithm, cfg):
        check_judges(data, cfg)
    check_split(data, algorithm, cfg)
    functions = {
        name: resolve(node.function["_target_"], f"reward.{name}")
        for name, node in cfg.reward.items()
    }
    reading = {name for name, one in functions.items() if "answer" in facts_of(one).reads}
    check_answers(data, reading, algorithm, cfg)
    check_usable(data, algorithm, cfg)
    if not cfg.evaluate:
        check_sources(data, algorithm)
    return data


def read_data(cfg: DictConfig) -> Data:
    """The result of the data function. Raises ConfigError if it is no Data, and, with the line in
    their code, for errors of users' own functions."""
    key = f"data={cfg.choices.data}"
    match attempt(build, (cfg.data,)):
        case Data() as data:
            return data
        case ConfigError() as error:
            raise error
        case BaseException() as error if not (place := place_of(error)):
            raise error
        case ValueError() as error:
            raise ConfigError(f"{key}: {' '.join(str(error).split())}{place}") from error
        case BaseException() as error:
            raise ConfigError(f"{key}: {describe(error)}") from error
        case other:
            raise ConfigError(
                f"{key} returned {type(other).__name__}, not tandem.data.records.Data; "
                "see docs/howto/data.md"
            )


def training_split(needs: frozenset[str]) -> str:
    """The split of the data that an algorithm with these needs trains on."""
    return next((split for split in ("demonstrations", "pairs") if split in needs), "train")


def scores_samples(algorithm: Algorithm, cfg: DictConfig) -> bool:
    """Whether samples are scored, in training or by an evaluation: not in a warm start, whose
    rewards may be others than those of its run."""
    if not algorithm.needs & GIVEN or "samples" in facts_of(algorithm.sampling_strategy).gives:
        return True
    return cfg.evaluate or cfg.evaluation.every is not None


def check_judges(data: Data, cfg: DictConfig) -> None:
    """Raise ConfigError for prompts that name a reward that was not chosen."""
    prompts = chain.from_iterable(data.splits.values())
    named = {name for prompt in prompts for name in prompt.rewards or ()}
    if missing := sorted(named - cfg.reward.keys()):
        chosen = ",".join([*cfg.reward, *missing])
        raise ConfigError(
            f"data={cfg.choices.data} has prompts for reward={missing[0]}, which is not "
            f"configured; set reward=[{chosen}], or leave Prompt.rewards out"
        )


def check_split(data: Data, algorithm: Algorithm, cfg: DictConfig) -> None:
    """Raise ConfigError for data without a row that the algorithm trains on."""
    source = training_split(algorithm.needs)
    if not data.splits[source]:
        raise ConfigError(
            f"algorithm={cfg.choices.algorithm} {WANTS[source]} of data={cfg.choices.data} has "
            f"one; {FIELDS}"
        )


def check_answers(data: Data, reading: Set[str], algorithm: Algorithm, cfg: DictConfig) -> None:
    """Raise ConfigError if so many prompts lack an answer that the run would stop for missing
    scores: those whose trained rewards are all among `reading`, the ones that read it."""
    if not algorithm.learns_from_scores or training_split(algorithm.needs) != "train":
        return
    trained = [name for name, node in cfg.reward.items() if node.get("weight", 1.0)]
    unanswered = [prompt for prompt in data.train if prompt.answer is None]
    own = [{name for name in trained if prompt.has_reward(name)} for prompt in unanswered]
    lacking = [names for names in own if names and names <= reading]
    if len(lacking) > cfg.guards.max_missing_rewards * len(data.train):
        raise ConfigError(
            f"reward={min(lacking[0])} reads the answer of a prompt, but {len(lacking)} of "
            f"{len(data.train)} prompts of data={cfg.choices.data} have none; {FIELDS}"
        )


def check_usable(data: Data, algorithm: Algorithm, cfg: DictConfig) -> None:
    """Raise ConfigError if the model, not yet loaded, would refuse every row to train on."""
    source, request = training_split(algorithm.needs), algorithm.request(build(cfg.rollout))
    with refusing():
        reason = build(cfg.model).refuse_all(data.splits[source], request)
    if reason is not None:
        raise ConfigError(f"data={cfg.choices.data}: every row of {source} {reason}")


def check_sources(data: Data, algorithm: Algorithm) -> None:
    """Raise ConfigError for prompts to train on whose source has no teacher, if others have one."""
    if algorithm.teachers is None:
        return
    prompts = data.splits[training_split(algorithm.needs)]
    with refusing():
        [*rows_by_teacher(prompts, algorithm.teachers.folders)]


def may_load_weights(function: DictConfig) -> bool:
    """Whether building the function of a reward may load a network: if it, or a part of it, is an
    object from outside the package, or one of the package with a `path`."""
    values = dict(iterate_leaves(to_plain(function)))
    if any(key.rpartition(".")[2] == "path" for key in values):
        return True
    targets = [key for key in values if key.endswith("_target_")]
    made = [x for x in targets if not values.get(f"{x.removesuffix('_target_')}_partial_")]
    return any(is_foreign(resolve(values[key], f"reward.{key}")) for key in made)


def must_be_downloaded(cfg: DictConfig) -> bool:
    """Whether the data, or a part of a mixture, comes from a hub."""
    named = [str(value) for key, value in iterate_leaves(cfg.data) if key.endswith("_target_")]
    return any(facts_of(resolve(target, "data")).downloads for target in named)


def check_places(cfg: DictConfig) -> None:
    """Check that local folders of models and of reward networks exist."""
    for group in ("model", "reward"):
        for key, value in iterate_leaves(to_plain(cfg[group])):
            own = key.rpartition(".")[2] == "path" and str(value).startswith(HERE)
            if own and not (place := expand_home(value).absolute()).exists():
                raise ConfigError(f"{group}.{key}={value}: there is no {place}")
