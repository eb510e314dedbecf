"""The check of an engine before weights are loaded."""

from __future__ import annotations

from omegaconf import DictConfig

from tandem.config import build
from tandem.data import Data
from tandem.launch.inputs import scores_samples
from tandem.policies.lora import Lora


def check_engine(cfg: DictConfig, data: Data) -> None:
    """Check that the sampling server answers, if there is one, before a warm start."""
    sampling = build(cfg.rollout)
    if sampling.engine is None:
        return
    if data.tries is None and not scores_samples(build(cfg.algorithm), cfg):
        return  # no sampling
    lora = cfg.model.get("lora")
    sampling.engine.check(sampling, None if lora is None else Lora(**lora))
    world = build(cfg.environment)
    if world and world.max_turns > 1:
        prompt = 1 if sampling.max_prompt_tokens is None else sampling.max_prompt_tokens
        sampling.engine.check_episodes(prompt + world.most_tokens(sampling.max_new_tokens))
