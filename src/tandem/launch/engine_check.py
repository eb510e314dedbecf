"""The check of an engine before weights are loaded."""

from __future__ import annotations

from omegaconf import DictConfig

from tandem.config import build
from tandem.contracts import facts_of
from tandem.data import Data
from tandem.policies.lora import Lora
from tandem.training.batches import GIVEN


def check_engine(cfg: DictConfig, data: Data) -> None:
    """Check that the sampling server answers, if there is one, before a warm start."""
    sampling = build(cfg.rollout)
    if sampling.engine is None:
        return
    algorithm = build(cfg.algorithm)
    samples = "samples" in facts_of(algorithm.sampling_strategy).gives
    given = bool(algorithm.needs & GIVEN) and data.tries is None and not samples
    if given and cfg.evaluation.every is None and not cfg.evaluate:
        return  # no sampling
    lora = cfg.model.get("lora")
    sampling.engine.check(sampling, None if lora is None else Lora(**lora))
    world = build(cfg.environment)
    if world and world.max_turns > 1:
        prompt = 1 if sampling.max_prompt_tokens is None else sampling.max_prompt_tokens
        sampling.engine.check_episodes(prompt + world.most_tokens(sampling.max_new_tokens))
