"""Assembly of a run's module, with its weights and the prompts that it can process."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from torch import nn

from tandem import distributed
from tandem.algorithm.algorithm import Algorithm
from tandem.algorithm.truncation import CheckedStrategy, CheckedTruncation
from tandem.config import ConfigError, build
from tandem.config.plain import iterate_leaves
from tandem.config.plugins import list_sources
from tandem.contracts import facts_of, is_foreign
from tandem.data import Data
from tandem.data.images import find_unseen
from tandem.environments import Environment, Mixture
from tandem.evaluation.settings import Evaluation
from tandem.experience import Budget
from tandem.launch import pairs
from tandem.launch.admission import admit_data
from tandem.launch.initial_weights import pairs_file
from tandem.launch.inputs import training_split
from tandem.policies.base import Policy
from tandem.policies.weights import Precision
from tandem.rewards import Reward, Rewards
from tandem.settings.settings import Settings
from tandem.training.batches import BatchPlan
from tandem.training.inputs import checksum_of_code, checksum_of_prompts, checksum_of_weights
from tandem.training.module import PostTraining
from tandem.training.offload import OPTIMIZER, with_offloading
from tandem.types import Prompt


def assemble(
    cfg: DictConfig, settings: Settings, data: Data, run_dir: Path, weights: Path | None
) -> tuple[PostTraining, Data]:
    """The module with its weights, and the data that it can process.

    `weights` is a folder that replaces the model's own.
    """
    algorithm = build_algorithm(cfg)
    policy = load_policy(cfg, settings, data, algorithm, weights)
    source = training_split(algorithm.needs)
    if source == "pairs" and data.tries is not None:
        data = pairs.complete_pairs(policy, data, pairs_file(cfg, weights), settings.seed)
    gives = facts_of(algorithm.sampling_strategy).gives
    data = admit_data(policy, data, source, settings, gives=gives)
    prompts, make = data.splits[source], build(cfg.optimizer)
    rewards = {name: build(node) for name, node in cfg.reward.items()}
    # A curriculum depends on scores; given rows are read in order.
    order = data.curriculum if source == "train" else data.given
    make_stream = partial(order, prompts, seed=settings.seed)
    module = PostTraining(
        policy=policy,
        algorithm=algorithm,
        rewards=Rewards(rewards, full=full_scores(rewards, settings.evaluation)),
        stream=check_stream(make_stream()),
        optimizer=with_offloading(make) if OPTIMIZER in settings.trainer.offload else make,
        schedule=build(cfg.schedule),
        plan=plan(settings, packed=policy.packs),
        guards=settings.guards,
        folder=run_dir,
        make_stream=make_stream,
        inputs=checksums(policy, prompts, data, cfg),
    )
    return module, data


def full_scores(rewards: Mapping[str, Reward], evaluation: Evaluation) -> dict[str, float]:
    """The full score of each trained reward that has one: the top of its range, or the threshold
    from which evaluation calls a sample correct."""
    threshold, decisive = evaluation.threshold, evaluation.metric or next(iter(rewards))
    found = {} if threshold is None else {decisive: threshold}
    found |= {name: 1.0 for name, one in rewards.items() if one.range is not None}
    return {name: score for name, score in found.items() if rewards[name].weight > 0}


def checksums(
    policy: Policy, prompts: Sequence[Prompt], data: Data, cfg: DictConfig
) -> dict[str, int]:
    """Of the prompts, the user's code, the precision, and the weights if there are any yet: those
    that are trained, and the others, such as the base below adapters."""
    targets = [str(value) for key, value in iterate_leaves(cfg) if key.endswith("_target_")]
    found = {
        f"data={cfg.choices.data}": checksum_of_prompts(prompts),
        f"data={cfg.choices.data} of the evaluation": checksum_of_prompts(data.eval),
        "trainer.precision": zlib.crc32(cfg.trainer.precision.encode()),
        **checksum_of_code(list_sources(targets)),
    }
    trained, model = policy.weights(), f"model={cfg.choices.model}"
    frozen = {name: x for name, x in policy.named_parameters() if not x.requires_grad}
    if not any(x.is_meta for x in (*trained.values(), *frozen.values())):
        found[model] = checksum_of_weights(trained)
        found[f"the frozen part of {model}"] = checksum_of_weights(frozen)
    return found


def build_algorithm(cfg: DictConfig) -> Algorithm:
    """The algorithm, with checks of what functions of users return."""
    algorithm = build(cfg.algorithm)
    checked = CheckedTruncation(algorithm.truncation_handling)
    strategy = algorithm.sampling_strategy
    if is_foreign(strategy):
        strategy = CheckedStrategy(strategy)
    return replace(algorithm, truncation_handling=checked, sampling_strategy=strategy)


def load_policy(
    cfg: DictConfig, settings: Settings, data: Data, algorithm: Algorithm, weights: Path | None
) -> Policy:
    """The policy with all weights that the algorithm reads.

    `weights` is a folder that replaces the model's own. Raises ConfigError, before a weight is
    read, if the policy cannot see the pictures of the data.
    """
    own = {} if weights is None else {"path": str(weights)}
    policy = build(OmegaConf.merge(cfg.model, own))
    check_sight(policy, data, settings)
    environment = build(cfg.environment) or None
    if environment is not None:
        check_openings(environment, data, settings)
    request = algorithm.request(build(cfg.rollout))
    request = replace(request, environment=environment, epochs=settings.epochs, seed=settings.seed)
    trainer = settings.trainer
    rounds = trainer.float32_matmul_precision != "highest"
    precision = Precision(mixed=trainer.is_mixed, rounds=rounds)
    # Sharded weights come from the first rank. Pairs are sampled before that, by each rank.
    shards = trainer.strategy == "fsdp2" and not settings.evaluate and data.tries is None
    policy.load(
        replace(
            request,
            precision=precision,
            offload=frozenset(trainer.offload),
            awaits_weights=shards and not distributed.is_first(),
        )
    )
    return policy


def check_stream(stream: object) -> nn.Module:
    """The stream. Raises ConfigError for anything else that a curriculum made."""
    if not isinstance(stream, nn.Module):
        made = type(stream).__name__
        raise ConfigError(f"data/curriculum made a {made}; make a tandem.data.stream.PromptStream")
    return stream


def check_sight(policy: Policy, data: Data, settings: Settings) -> None:
    """Raise ConfigError for prompts with pictures if the policy has no vision, and for pictures in
    fields that the prompts do not show."""
    prompts = [*chain.from_iterable(data.splits.values())]
    chosen = settings.choices
    if not policy.sees and any(prompt.images for prompt in prompts):
        raise ConfigError(
            f"data={chosen['data']} has prompts with images, but model={chosen['model']} reads "
            "only text; set model=vlm with model.path, or model=tiny_vlm"
        )
    if policy.sees and (unseen := {name for prompt in prompts for name in find_unseen(prompt)}):
        raise ConfigError(
            f"data={chosen['data']} has images in the prompt fields {', '.join(sorted(unseen))}, "
            f"which model={chosen['model']} does not read; name the column with "
            "data.columns.images, or fill Prompt.images in the function that reads the data"
        )


def check_openings(environment: Environment | Mixture, data: Data, settings: Settings) -> None:
    """Raise ConfigError for prompts with pictures whose world replaces them and shows none."""
    blind = {
        name
        for name, part in environment.parts.items()
        if part.about.writes_prompt and not part.about.shows
    }
    prompts = chain.from_iterable(data.splits.values())
    if any(prompt.images and environment.name_of(prompt) in blind for prompt in prompts):
        chosen = settings.choices
        raise ConfigError(
            f"environment={chosen['environment']} replaces the prompts of data={chosen['data']} "
            "and does not pass on their images; set data without images, or an environment that "
            "declares About(shows=True)"
        )


def plan(settings: Settings, *, packed: bool) -> BatchPlan:
    return BatchPlan(
        seed=settings.seed,
        iterations=settings.iterations,
        prompts_per_step=settings.prompts_per_step,
        group_size=settings.group_size,
        num_minibatches=settings.num_minibatches,
        epochs=settings.epochs,
        budget=Budget(
            max_tokens=settings.max_tokens_per_microbatch,
            rows=settings.micro_batch_size,
            packed=packed,
        ),
        max_grad_norm=settings.max_grad_norm,
    )
