"""Chains without a network, and with small ones."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from gaussian_policy import GaussianPolicy
from records import GRPO
from table_policy import TablePolicy

from tandem.algorithm.algorithm import Algorithm
from tandem.losses.segments import Segment
from tandem.policies.chain.policy import ChainPolicy
from tandem.policies.chain.records import ChainSampling
from tandem.policies.chain.unified import UnifiedPolicy
from tandem.policies.flow.families.tiny_flow import TinyFlow
from tandem.policies.flow.families.tiny_unified import TinyUnified
from tandem.policies.flow.policy import FlowPolicy
from tandem.policies.flow.records import FlowSampling
from tandem.policies.language.policy import LanguagePolicy
from tandem.policies.language.records import Sampling
from tandem.policies.language.tiny_lm import tiny_lm
from tandem.policies.lora import Lora
from tandem.types import Prompt

BOTH = {"text": Segment(), "picture": Segment(clip_scale=1e-3, sequence_scale=1e-3)}
SMALL = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "intermediate_size": 32}
RIDDLES = ("the colour of blood , round as a coin :", "without corners , the colour of grass :")


class TableChain(ChainPolicy):
    """A table that samples digits, and a linear field that samples pictures."""

    def __init__(self, algorithm: Algorithm, dtype: torch.dtype) -> None:
        super().__init__(text=TablePolicy(dtype=dtype), picture=GaussianPolicy(dtype=dtype))
        both = ChainSampling(text=self.text.sampling, picture=FlowSampling(steps=5))
        self.request, self.exact = algorithm.request(both), True

    @property
    def rows_seen(self) -> list[int]:
        return self.text.rows_seen


def small(algorithm: Algorithm | None = None, *, seed: int = 0, **sampling) -> ChainPolicy:
    """A chain of two one-layer models, loaded; `sampling` is that of the images."""
    build = partial(tiny_lm, seed=seed, reads="words", **SMALL)
    policy = ChainPolicy(
        text=LanguagePolicy(build=build, packing=False, share_prompts=False),
        picture=FlowPolicy(adapter=TinyFlow(seed=seed, num_layers=1), latent_size=768),
    )
    return load_chain(policy, algorithm, **sampling)


def unified(
    algorithm: Algorithm | None = None, *, seed: int = 0, lora: Lora | None = None, **sampling
) -> UnifiedPolicy:
    """Two layers that write and paint, loaded; `sampling` is that of the images."""
    build = partial(tiny_lm, seed=seed, reads="words", tied=False, **SMALL | {"num_layers": 2})
    policy = UnifiedPolicy(
        text=LanguagePolicy(build=build, packing=False, share_prompts=False, lora=lora),
        picture=FlowPolicy(adapter=TinyUnified(seed=seed), latent_size=768),
    )
    return load_chain(policy, algorithm, **sampling)


def load_chain(policy: ChainPolicy, algorithm: Algorithm | None = None, **sampling) -> ChainPolicy:
    own = ChainSampling(
        text=Sampling(max_new_tokens=4), picture=FlowSampling(**{"steps": 4} | sampling)
    )
    policy.load((algorithm or grpo()).request(own))
    return policy


def grpo(**segments: Segment) -> Algorithm:
    return replace(GRPO, segments=BOTH | segments)


def riddles() -> list[Prompt]:
    return [
        Prompt(id=number, source="riddles", text=text, answer="red circle", fields={"level": 1})
        for number, text in enumerate(RIDDLES)
    ]
